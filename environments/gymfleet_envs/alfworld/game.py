"""A game from a `game.tw-pddl` file, checked before any engine sees it."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gymfleet_envs.alfworld.vocabulary import TASK_TYPES
from gymfleet_envs.tasks import TaskDataError

MAX_GAME_BYTES: Final = 8 << 20
_MAX_TEXT_CHARS: Final = {"pddl_domain": 200_000, "grammar": 200_000, "pddl_problem": 4_000_000}
_KIND: Final = re.compile(r"[A-Za-z]{1,40}")
_MAX_WALKTHROUGH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Goal:
    """One of the six task types; `receptacle` is the lamp for `look_at_obj_in_light`."""

    task_type: str
    thing: str
    receptacle: str


@dataclass(frozen=True, slots=True)
class Game:
    """The game that the engine plays. `goal` guides the expert, if it is known."""

    domain: str
    grammar: str
    problem: str
    goal: Goal | None = None
    walkthrough: tuple[str, ...] = ()
    turn_limit: int | None = None


def parse_game(text: bytes, where: str, goal: Goal | None = None) -> Game:
    """Read a game file. Raises `TaskDataError` with the fault and `where`."""
    if len(text) > MAX_GAME_BYTES:
        raise TaskDataError(f"{where} has {len(text)} bytes; {MAX_GAME_BYTES} is the limit")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{where} is not JSON: {error}") from None
    if not isinstance(data, Mapping):
        raise TaskDataError(f"{where} must be a JSON object, is a {type(data).__name__}")
    parts: dict[str, str] = {}
    for key, limit in _MAX_TEXT_CHARS.items():
        value = data.get(key)
        if not isinstance(value, str) or not value.strip():
            raise TaskDataError(f"{where} lacks {key!r}, or it is no text")
        if len(value) > limit:
            raise TaskDataError(f"{where}: {key!r} has {len(value)} characters; {limit} is the limit")
        parts[key] = value
    walkthrough = data.get("walkthrough") or []
    if (
        not isinstance(walkthrough, list)
        or len(walkthrough) > _MAX_WALKTHROUGH
        or not all(isinstance(command, str) for command in walkthrough)
    ):
        raise TaskDataError(f"{where}: 'walkthrough' must be a list of at most {_MAX_WALKTHROUGH} commands")
    return Game(
        domain=parts["pddl_domain"],
        grammar=parts["grammar"],
        problem=parts["pddl_problem"],
        goal=goal,
        walkthrough=tuple(walkthrough),
    )


def parse_goal(task: str) -> tuple[Goal, str] | None:
    """Parse a task's name, such as `pick_and_place_simple-Mug-None-Desk-308`, into goal and scene; None if it is none.

    Tasks with a movable receptacle or a sliced thing belong to none of the six types.
    """
    parts = task.split("-")
    if len(parts) != 5 or parts[0] not in TASK_TYPES or parts[2] != "None" or "Sliced" in parts[1]:
        return None
    if not (_KIND.fullmatch(parts[1]) and _KIND.fullmatch(parts[3])):
        return None
    return Goal(parts[0], parts[1], parts[3]), parts[4]
