"""`/mcp/{env}`: each environment as an MCP server, for the official clients of both protocol generations.

The wire is the `mcp` package's own. Every request is independent: no MCP session id is
issued, no stream is held open, and the lease is an argument of the tools. So any
gateway replica can answer any request, also from clients that begin with `initialize`.
"""

import asyncio
import importlib
import importlib.util
from functools import cache
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

_ENDPOINT: Final = "gymfleet_env_gateway.fronts.mcp.endpoint"


class _Endpoint:
    """The ASGI app behind `/mcp/{env}`. The first request imports `mcp`, which would take half of a gateway's start."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one POST."""
        serve = await asyncio.to_thread(_loaded)
        await serve(scope, receive, send)


@cache
def _loaded() -> ASGIApp:
    serve: ASGIApp = importlib.import_module(_ENDPOINT).serve
    return serve


def install_mcp(app: FastAPI) -> None:
    """Serve the front from `app`. GET and DELETE are answered with 405: there is no stream and no session.

    Raises `ImportError` where the package is not installed.
    """
    if importlib.util.find_spec("mcp") is None:
        raise ImportError("GYMFLEET_GATEWAY_MCP needs the package mcp: install gymfleet[env-gateway]")
    app.router.routes.append(Route("/mcp/{env}", _Endpoint(), methods=["POST"], include_in_schema=False))
