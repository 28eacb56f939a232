"""`/agentgym/{env}/...`: AgentGym's own wire, for its unmodified clients.

A client's base URL is `http://gateway/agentgym/textcraft`, `.../babyai`,
`.../maze/maze/`, `.../wordle/wordle/`: AgentGym serves the last two by one
process, under a path each. Its clients take status 200 alone for success, and
`{"error": ...}` for a mistake of theirs. A failure of the machinery keeps its
status and problem, on which they raise: it must not look like an episode.
"""

import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from gymfleet_contracts.numbers import NUMBER
from gymfleet_kit.problems import problem_responses
from gymfleet_kit.session_problems import (
    ActionTooLarge,
    EnvironmentFailed,
    SessionLost,
    StepOutOfOrder,
    UnknownEnvironment,
    UnknownSession,
)
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from gymfleet_env_gateway.errors import (
    Forbidden,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
    Unavailable,
    UpstreamTimeout,
)
from gymfleet_env_gateway.fronts.agentgym_games import BABYAI, MAZE, TEXTCRAFT, WORDLE, Game
from gymfleet_env_gateway.fronts.agentgym_sessions import AgentGymError, AgentGymSessions, Player
from gymfleet_env_gateway.state import TenantDep

PREFIX: Final = "/agentgym"
_FAILURE_REWARD: Final = -1.0
"""What AgentGym's maze gives when the turns run out."""
_VOCABULARY: Final = re.compile(r"^Vocabulary: ([a-z]+(?:, [a-z]+)+)$", re.MULTILINE)
_SLASHES: Final = re.compile(r"/{2,}")

TaskNumber = Annotated[int, Field(ge=0, lt=2**63), NUMBER]


class _Id(BaseModel):
    id: Annotated[int, NUMBER]


class _Action(_Id):
    action: str


class _DataIndex(_Id):
    data_idx: TaskNumber = 0


class _GameNumber(_Id):
    game: TaskNumber


class _Seed(_Id):
    seed: TaskNumber


class Mistake(BaseModel):
    """What a client is told, with status 200, when the mistake is its own."""

    error: str


class _TextCraftCreate(BaseModel):
    """The client sends it; as in AgentGym, the task is chosen by `reset` alone."""

    minecraft_dir: str | None = None
    commands: str | None = None
    goal: str | None = None


async def get_sessions(request: Request) -> AgentGymSessions:
    """The app's AgentGym ids."""
    sessions: AgentGymSessions = request.app.state.agentgym
    return sessions


SessionsDep = Annotated[AgentGymSessions, Depends(get_sessions)]
_FAILURES: Final = problem_responses(
    Unauthorized, Forbidden, UnknownEnvironment, UnknownSession, ActionTooLarge, StepOutOfOrder, SessionLost, QueueFull,
    QuotaExceeded, RateLimited, EnvironmentFailed, Unavailable, UpstreamTimeout,
)  # fmt: skip
router = APIRouter(prefix=PREFIX, tags=["agentgym"], responses=_FAILURES)


def _common(game: Game, path: str) -> None:
    """What all servers have alike."""

    @router.get(f"/{game.env}", name=f"{game.env} banner")
    async def banner() -> str:
        """AgentGym's sign of life."""
        return game.banner

    @router.get(f"{path}/observation", name=f"{game.env} observation")
    async def observation(id: int, sessions: SessionsDep, tenant: TenantDep) -> str | Mistake:  # noqa: A002 - the wire's name
        """The last observation."""
        return (await sessions.find(tenant, game, id)).observation


def _closing(game: Game, path: str) -> None:
    @router.post(f"{path}/close", name=f"{game.env} close")
    async def close(body: _Id, sessions: SessionsDep, tenant: TenantDep) -> bool:
        """Forget the id; false when there is none."""
        return await sessions.close(tenant, game, body.id)


for _game, _path in ((TEXTCRAFT, "/textcraft"), (BABYAI, "/babyai"), (MAZE, "/maze/maze"), (WORDLE, "/wordle/wordle")):
    _common(_game, _path)
for _game in (TEXTCRAFT, BABYAI):
    _closing(_game, f"/{_game.env}")


@router.post("/textcraft/create")
async def textcraft_create(_: _TextCraftCreate, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """A new id, with an episode: AgentGym resets to the task that the id numbers."""
    number = await sessions.create(tenant, TEXTCRAFT)
    try:
        return _textcraft(await sessions.reset(tenant, TEXTCRAFT, number, number))
    except BaseException:
        await sessions.close(tenant, TEXTCRAFT, number)
        raise


@router.post("/textcraft/reset")
async def textcraft_reset(body: _DataIndex, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin the episode of goal `data_idx`."""
    return _textcraft(await sessions.reset(tenant, TEXTCRAFT, body.id, body.data_idx))


@router.post("/textcraft/step")
async def textcraft_step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Apply a command."""
    _, result = await sessions.step(tenant, TEXTCRAFT, body.id, body.action)
    return _result(result)


@router.post("/babyai/create")
async def babyai_create(sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """A new id."""
    return {"id": await sessions.create(tenant, BABYAI)}


@router.post("/babyai/reset")
async def babyai_reset(body: _DataIndex, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin the episode of level and seed that `data_idx` numbers."""
    player = await sessions.reset(tenant, BABYAI, body.id, body.data_idx)
    start = {"reward": 0.0, "score": 0.0, "deleted": False, "done": player.over}
    return {"observation": player.observation, **start}


@router.post("/babyai/step")
async def babyai_step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Apply an action. `score`, the sum of all rewards, is what AgentGym's client takes for the reward."""
    player, result = await sessions.step(tenant, BABYAI, body.id, body.action)
    return {**_result(result), "score": player.total_reward}


@router.post("/maze/maze/create")
async def maze_create(sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """A new id."""
    return {"id": await sessions.create(tenant, MAZE)}


@router.post("/maze/maze/reset")
async def maze_reset(body: _GameNumber, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin at start position `game`."""
    return {"observation": (await sessions.reset(tenant, MAZE, body.id, body.game)).observation}


@router.post("/maze/maze/step")
async def maze_step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Move; -1 when the turns have run out."""
    _, result = await sessions.step(tenant, MAZE, body.id, body.action)
    if result["truncated"] and not result["terminated"]:
        return {"observation": "Failure\n", "reward": _FAILURE_REWARD, "done": True}
    return _result(result)


@router.post("/wordle/wordle/create")
async def wordle_create(sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """A new id."""
    return {"id": await sessions.create(tenant, WORDLE)}


@router.get("/wordle/wordle/filtered_vocab")
async def wordle_vocabulary(id: int, sessions: SessionsDep, tenant: TenantDep) -> list[str] | Mistake:  # noqa: A002 - the wire's name
    """The words that may be guessed; asked for before the first `reset`, so an episode is begun for it."""
    player = await sessions.find(tenant, WORDLE, id)
    if not player.session_id:
        player = await sessions.reset(tenant, WORDLE, id, 0)
    listed = _VOCABULARY.search(player.first_observation)
    return listed[1].split(", ") if listed else []


@router.post("/wordle/wordle/reset")
async def wordle_reset(body: _Seed, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin the game of `seed`."""
    player = await sessions.reset(tenant, WORDLE, body.id, body.seed)
    return {"id": player.number, "observation": player.observation}


@router.post("/wordle/wordle/step")
async def wordle_step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Guess."""
    _, result = await sessions.step(tenant, WORDLE, body.id, body.action)
    return _result(result)


def _textcraft(player: Player) -> dict[str, Any]:
    return {"id": player.number, "observation": player.observation, "done": player.over, "reward": 0.0}


def _result(result: dict[str, Any]) -> dict[str, Any]:
    """No info, no score: AgentGym's servers send neither, and nothing of the task's solution may leave."""
    done = bool(result["terminated"] or result["truncated"])
    return {"observation": result["observation"], "reward": float(result["reward"]), "done": done}


class SingleSlashes:
    """AgentGym's clients join a base URL that ends in a slash to a path that begins with one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rewrite paths of this front alone."""
        path = scope.get("path", "")
        if path.startswith(PREFIX):
            path = _SLASHES.sub("/", path)
            scope = {**scope, "path": path.rstrip("/") or "/"}
        await self._app(scope, receive, send)


def install_agentgym(app: FastAPI, sessions: AgentGymSessions) -> None:
    """Serve the front from `app`."""

    async def mistake(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)})

    app.state.agentgym = sessions
    app.add_exception_handler(AgentGymError, mistake)
    app.add_middleware(SingleSlashes)
    app.include_router(router)
