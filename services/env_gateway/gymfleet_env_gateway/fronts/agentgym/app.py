"""`/agentgym/{env}/...`: AgentGym's own wire, for its unmodified clients.

A client's base URL is `http://gateway/agentgym/textcraft`, `.../babyai`, `.../alfworld`,
`.../sciworld`, `.../sqlgym`, `.../webshop`, `.../searchqa`, `.../todo` and the other tools,
`.../maze/maze/`, `.../wordle/wordle/`: AgentGym serves the last two from one process, each under its
own path. Its clients treat only status 200
as success. A client's mistake is answered as AgentGym's servers do: with 200 and `{"error": ...}`,
or, by those that call the id `env_idx`, with a 500. A failure of the system itself keeps its status
and problem, on which the clients raise: it must not look like an episode.
"""

import re
from typing import Final

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gymfleet_env_gateway.fronts.agentgym import by_env_idx, by_id
from gymfleet_env_gateway.fronts.agentgym.sessions import AgentGymError, AgentGymSessions
from gymfleet_env_gateway.fronts.agentgym.wire import PREFIX

_SLASHES: Final = re.compile(r"/{2,}")


class SingleSlashes:
    """Middleware that merges slashes: AgentGym's clients join a base URL ending in one to a path beginning with one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rewrite the paths of this front only."""
        path = scope.get("path", "")
        if path.startswith(PREFIX):
            path = _SLASHES.sub("/", path)
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def install_agentgym(app: FastAPI, sessions: AgentGymSessions) -> None:
    """Serve the front from `app`."""

    async def mistake(_: Request, error: Exception) -> JSONResponse:
        told = isinstance(error, AgentGymError) and error.game.tells_errors
        return JSONResponse({"error": str(error)}, status_code=200 if told else 500)

    app.state.agentgym = sessions
    app.add_exception_handler(AgentGymError, mistake)
    app.add_middleware(SingleSlashes)
    app.include_router(by_id.router)
    app.include_router(by_env_idx.router)
