"""The dialect of AgentGym's older servers: objects that call the id `id`, and mistakes reported with status 200."""

import re
from typing import Any, Final

from fastapi import APIRouter, Response
from gymfleet_kit.direct_route import DirectRoute
from pydantic import BaseModel

from gymfleet_env_gateway.fronts.agentgym.games import ALFWORLD, BABYAI, MAZE, SCIWORLD, TEXTCRAFT, WORDLE, Game
from gymfleet_env_gateway.fronts.agentgym.sessions import AgentGymError, Player
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

_FAILURE_REWARD: Final = -1.0
"""The reward that AgentGym's maze gives when the turns run out."""
_VOCABULARY: Final = re.compile(r"^Vocabulary: ([a-z]+(?:, [a-z]+)+)$", re.MULTILINE)
_WORLD_TYPES: Final = ("Text", "Embody", "Hybrid")


class _Id(BaseModel):
    id: Number


class _Action(_Id):
    action: str


class _DataIndex(_Id):
    data_idx: TaskNumber = 0


class _GameNumber(_Id):
    game: TaskNumber


class _World(_GameNumber):
    world_type: str = "Text"
    """AgentGym's server plays all three as text."""


class _Seed(_Id):
    seed: TaskNumber


class _TextCraftCreate(BaseModel):
    """The body that the client sends; as in AgentGym, `reset` alone chooses the task."""

    minecraft_dir: str | None = None
    commands: str | None = None
    goal: str | None = None


router = APIRouter(prefix=PREFIX, tags=["agentgym"], responses=FAILURES, route_class=DirectRoute)


def _common(game: Game) -> None:
    """Add the routes that all servers share."""

    @router.get(game.root, name=f"{game.env} banner")
    async def banner() -> str:
        """AgentGym's sign of life."""
        return game.banner

    @router.get(f"{game.path}/observation", name=f"{game.env} observation")
    async def observation(id: int, sessions: SessionsDep, tenant: TenantDep) -> str | Mistake:  # noqa: A002 - the wire's name
        """The last observation."""
        return (await sessions.find(tenant, game, id)).observation


def _creating(game: Game) -> None:
    @router.post(f"{game.path}/create", name=f"{game.env} create")
    async def create(sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
        """A new id."""
        return {"id": await sessions.create(tenant, game)}


def _closing(game: Game) -> None:
    @router.post(f"{game.path}/close", name=f"{game.env} close")
    async def close(body: _Id, sessions: SessionsDep, tenant: TenantDep) -> bool:
        """Forget the id; false when there is none."""
        return await sessions.close(tenant, game, body.id)


def _stepping(game: Game) -> None:
    @router.post(f"{game.path}/step", name=f"{game.env} step", response_model=dict[str, Any])
    async def step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> Response:
        """Apply an action."""
        _, result = await sessions.step(tenant, game, body.id, body.action)
        return answered(stepped(result))


def _scored_stepping(game: Game) -> None:
    @router.post(f"{game.path}/step", name=f"{game.env} step", response_model=dict[str, Any])
    async def step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> Response:
        """Apply an action. `score`, the sum of all rewards, is what AgentGym's client takes for the reward.

        SciWorld's is in 0 to 100, or below 0.
        """
        player, result = await sessions.step(tenant, game, body.id, body.action)
        return answered({**stepped(result), "score": player.total_reward})


for _game in (TEXTCRAFT, BABYAI, MAZE, WORDLE, ALFWORLD, SCIWORLD):
    _common(_game)
for _game in (BABYAI, MAZE, WORDLE, ALFWORLD, SCIWORLD):
    _creating(_game)
for _game in (TEXTCRAFT, BABYAI, ALFWORLD, SCIWORLD):
    _closing(_game)
for _game in (TEXTCRAFT, WORDLE):
    _stepping(_game)
for _game in (BABYAI, SCIWORLD):
    _scored_stepping(_game)


@router.post("/textcraft/create")
async def textcraft_create(_: _TextCraftCreate, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """A new id, with an episode: AgentGym resets to the task that has the id as its number."""
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


@router.post("/babyai/reset")
async def babyai_reset(body: _DataIndex, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin the episode of the level and seed with the number `data_idx`."""
    player = await sessions.reset(tenant, BABYAI, body.id, body.data_idx)
    return {"observation": player.observation, **_unscored(player)}


@router.post("/maze/maze/reset")
async def maze_reset(body: _GameNumber, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin at start position `game`."""
    return {"observation": (await sessions.reset(tenant, MAZE, body.id, body.game)).observation}


@router.post("/maze/maze/step", response_model=dict[str, Any])
async def maze_step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> Response:
    """Move; the reward is -1 when the turns have run out."""
    _, result = await sessions.step(tenant, MAZE, body.id, body.action)
    if result["truncated"] and not result["terminated"]:
        return answered({**stepped(result), "observation": "Failure\n", "reward": _FAILURE_REWARD})
    return answered(stepped(result))


@router.get("/wordle/wordle/filtered_vocab")
async def wordle_vocabulary(id: int, sessions: SessionsDep, tenant: TenantDep) -> list[str] | Mistake:  # noqa: A002 - the wire's name
    """The words that may be guessed; clients ask before the first `reset`, so an episode is begun for it."""
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


@router.post("/alfworld/reset")
async def alfworld_reset(body: _World, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin game number `game`."""
    if body.world_type not in _WORLD_TYPES:
        raise AgentGymError(ALFWORLD, 'world_type must be one of "Text", "Embody" and "Hybrid"')
    player = await sessions.reset(tenant, ALFWORLD, body.id, body.game)
    told = {"available_actions": _available(player), "task_type": player.first_info.get("task_type", "")}
    return {"id": player.number, "observation": player.observation, **told}


@router.post("/alfworld/step", response_model=dict[str, Any])
async def alfworld_step(body: _Action, sessions: SessionsDep, tenant: TenantDep) -> Response:
    """Apply a command."""
    player, result = await sessions.step(tenant, ALFWORLD, body.id, body.action)
    return answered({**stepped(result), "available_actions": _available(player)})


@router.get("/alfworld/available_actions")
async def alfworld_available_actions(id: int, sessions: SessionsDep, tenant: TenantDep) -> list[str] | Mistake:  # noqa: A002 - the wire's name
    """The commands that would do something now."""
    return _available(await sessions.find(tenant, ALFWORLD, id))


@router.post("/sciworld/reset")
async def sciworld_reset(body: _DataIndex, sessions: SessionsDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin the episode of the task and variation with the number `data_idx`."""
    player = await sessions.reset(tenant, SCIWORLD, body.id, body.data_idx)
    description, room = _sciworld_start(player)
    task = {"task_name": player.first_info.get("task_name", ""), "var_num": player.first_info.get("variation", 0)}
    points = round(100 * player.first_score)  # AgentGym's server looks around first, which earns these points
    scored = _unscored(player) | {"reward": float(points), "score": float(points)}
    return {**task, "task_description": description, "observation": room, **scored}


@router.get("/sciworld/task_description")
async def sciworld_task_description(id: int, sessions: SessionsDep, tenant: TenantDep) -> str | Mistake:  # noqa: A002 - the wire's name
    """What is to be done; empty before the first `reset`."""
    return _sciworld_start(await sessions.find(tenant, SCIWORLD, id))[0]


def _textcraft(player: Player) -> dict[str, Any]:
    return {"id": player.number, "observation": player.observation, "done": player.over, "reward": 0.0}


def _unscored(player: Player) -> dict[str, Any]:
    return {"reward": 0.0, "score": 0.0, "deleted": False, "done": player.over}


def _available(player: Player) -> list[str]:
    return list(player.info.get("available_actions", ()))


def _sciworld_start(player: Player) -> tuple[str, str]:
    """Return task and room of the first observation; AgentGym's client itself joins the two with a line break."""
    description = player.first_info.get("task_description", player.first_observation.partition("\n")[0])
    return description, player.first_observation.removeprefix(description).removeprefix("\n")
