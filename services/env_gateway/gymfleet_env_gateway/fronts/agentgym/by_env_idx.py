"""The dialect of AgentGym's sqlgym, webshop, searchqa and tools: ids are bare ints called `env_idx`.

sqlgym and webshop call an observation `state`; searchqa and the tools call a task's number `id`, and begin with one.

Their servers crash with a 500 on a client's mistake, and the client retries up to five
times and then raises; here the 500 says what was wrong.
"""

import re
from typing import Any, Final

from fastapi import APIRouter, Response
from gymfleet_kit.direct_route import DirectRoute
from pydantic import BaseModel

from gymfleet_env_gateway.fronts.agentgym.games import SEARCHQA, SQLGYM, TOOLS, WEBSHOP, Game
from gymfleet_env_gateway.fronts.agentgym.wire import (
    FAILURES,
    PREFIX,
    Mistake,
    Number,
    SessionsDep,
    TaskNumber,
    answered,
    stepped,
)
from gymfleet_env_gateway.state import TenantDep

_MISTAKE: Final[dict[int | str, dict[str, Any]]] = {500: {"model": Mistake, "description": "A mistake of the client's"}}
_INSTRUCTION: Final = re.compile(r"Instruction: \[SEP\] (.*?) \[SEP\] ", re.DOTALL)


class _EnvIdx(BaseModel):
    env_idx: Number


class _Action(_EnvIdx):
    action: str


class _ItemId(_EnvIdx):
    item_id: TaskNumber


class _SessionId(_EnvIdx):
    session_id: TaskNumber


class _QuestionId(BaseModel):
    id: TaskNumber


class _Question(_EnvIdx, _QuestionId):
    pass


class _QuestionAgain(_EnvIdx):
    id: TaskNumber | None = None
    """None: the task that the id already has."""


class _Closed(BaseModel):
    closed: bool


class _AvailableActions(BaseModel):
    has_search_bar: bool
    clickables: list[str]


router = APIRouter(prefix=PREFIX, tags=["agentgym"], responses={**FAILURES, **_MISTAKE}, route_class=DirectRoute)


def _banner(game: Game) -> None:
    @router.get(game.root, name=f"{game.env} banner")
    async def banner() -> str:
        """AgentGym's sign of life."""
        return game.banner


def _common(game: Game, seen: str) -> None:
    """Add the routes that all servers but the tools share; `seen` is the name of the observation in an answer."""
    _banner(game)

    @router.post(f"{game.path}/step", name=f"{game.env} step", response_model=dict[str, Any])
    async def step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> Response:
        """Apply an action. AgentGym's sqlgym puts the solution into `info`; here it is null, or reports a recovery."""
        _, result = await sessions.step(tenant, game, body.env_idx, body.action)
        return answered({"info": None, **stepped(result, seen)})


def _list_envs(game: Game) -> None:
    @router.get(f"{game.path}/list_envs", name=f"{game.env} list_envs")
    async def list_envs(sessions: SessionsDep, tenant: TenantDep) -> list[int]:
        """The caller's ids."""
        return await sessions.numbers(tenant, game)


def _listed(game: Game) -> None:
    """Add the routes that sqlgym and webshop share."""
    _list_envs(game)

    @router.post(f"{game.path}/create", name=f"{game.env} create")
    async def create(sessions: SessionsDep, tenant: TenantDep) -> int:
        """A new id."""
        return await sessions.create(tenant, game)

    @router.get(f"{game.path}/observation", name=f"{game.env} observation")
    async def observation(env_idx: int, sessions: SessionsDep, tenant: TenantDep) -> str:
        """The last observation."""
        return (await sessions.find(tenant, game, env_idx)).observation


def _begins(game: Game) -> None:
    """Add the routes that searchqa and the tools share."""

    @router.post(f"{game.path}/create", name=f"{game.env} create")
    async def create(body: _QuestionId, sessions: SessionsDep, tenant: TenantDep) -> int:
        """A new id, with an episode: AgentGym begins with the task whose number is in the body."""
        number = await sessions.create(tenant, game)
        try:
            await sessions.reset(tenant, game, number, body.id)
        except BaseException:
            await sessions.close(tenant, game, number)
            raise
        return number

    @router.get(f"{game.path}/observation", name=f"{game.env} observation")
    async def observation(env_idx: int, sessions: SessionsDep, tenant: TenantDep) -> str:
        """The task: AgentGym's server answers with it at any time."""
        return (await sessions.find(tenant, game, env_idx)).first_observation


def _tool(game: Game) -> None:
    """Add the routes of a tool server."""
    _banner(game)
    _list_envs(game)
    _begins(game)

    @router.post(f"{game.path}/reset", name=f"{game.env} reset")
    async def reset(body: _QuestionAgain, sessions: SessionsDep, tenant: TenantDep) -> str:
        """Begin the episode of task `id`, or the same task once more."""
        return (await sessions.reset(tenant, game, body.env_idx, body.id)).observation

    @router.post(f"{game.path}/step", name=f"{game.env} step", response_model=dict[str, Any])
    async def step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> Response:
        """Call the tool that a whole reply of the model names."""
        _, result = await sessions.step(tenant, game, body.env_idx, body.action)
        return answered(stepped(result))


for _game in (SQLGYM, WEBSHOP):
    _common(_game, "state")
    _listed(_game)
_common(SEARCHQA, "observation")
_begins(SEARCHQA)
for _game in TOOLS:
    _tool(_game)


@router.post("/sqlgym/reset")
async def sqlgym_reset(body: _ItemId, sessions: SessionsDep, tenant: TenantDep) -> tuple[str, None]:
    """Begin the episode of question `item_id`."""
    return (await sessions.reset(tenant, SQLGYM, body.env_idx, body.item_id)).observation, None


@router.post("/webshop/reset")
async def webshop_reset(body: _SessionId, sessions: SessionsDep, tenant: TenantDep) -> tuple[str, None]:
    """Begin the episode of goal `session_id`."""
    return (await sessions.reset(tenant, WEBSHOP, body.env_idx, body.session_id)).observation, None


@router.get("/webshop/available_actions")
async def webshop_available_actions(env_idx: int, sessions: SessionsDep, tenant: TenantDep) -> _AvailableActions:
    """What the page offers; nothing before the first `reset`."""
    info = (await sessions.find(tenant, WEBSHOP, env_idx)).info
    return _AvailableActions(
        has_search_bar=bool(info.get("has_search_bar", False)), clickables=list(info.get("clickables", ()))
    )


@router.get("/webshop/instruction_text")
async def webshop_instruction_text(env_idx: int, sessions: SessionsDep, tenant: TenantDep) -> str:
    """What is to be bought; empty before the first `reset`."""
    found = _INSTRUCTION.search((await sessions.find(tenant, WEBSHOP, env_idx)).first_observation)
    return found[1] if found else ""


@router.post("/webshop/close")
async def webshop_close(body: _EnvIdx, sessions: SessionsDep, tenant: TenantDep) -> _Closed:
    """Forget the id. AgentGym's later servers have this route; the clients of all of them call it."""
    return _Closed(closed=await sessions.close(tenant, WEBSHOP, body.env_idx))


@router.post("/searchqa/reset")
async def searchqa_reset(body: _Question, sessions: SessionsDep, tenant: TenantDep) -> str:
    """Begin the episode of question `id`."""
    return (await sessions.reset(tenant, SEARCHQA, body.env_idx, body.id)).observation


@router.post("/searchqa/close")
async def searchqa_close(body: _EnvIdx, sessions: SessionsDep, tenant: TenantDep) -> bool:
    """Forget the id; false when there is none."""
    return await sessions.close(tenant, SEARCHQA, body.env_idx)
