"""ALFWorld's own layout: `.../SPLIT/TASK/TRIAL/game.tw-pddl` with `traj_data.json` next to it."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.session import Split

from gymfleet_envs.alfworld.game import MAX_GAME_BYTES, Game, Goal, parse_game, parse_goal
from gymfleet_envs.alfworld.pddl import check_pddl
from gymfleet_envs.alfworld.vocabulary import TASK_TYPES
from gymfleet_envs.alfworld.wording import Wording
from gymfleet_envs.tasks import Task, TaskDataError

_GAME: Final = "game.tw-pddl"
_TRAJECTORY: Final = "traj_data.json"
_INDEX: Final = "games.json"
_LEVEL: Final = "games"
_MAX_TRAJECTORY_BYTES: Final = 16 << 20
_FOLDERS: Final[Mapping[str, tuple[Split, str]]] = {
    "train": ("train", _LEVEL),
    "valid_train": ("test", "valid_train"),  # AgentGym's test games
    "valid_seen": ("validation", _LEVEL),
    "valid_unseen": ("test", _LEVEL),
}
"""Split and level of the games in each of ALFWorld's folders."""


@dataclass(frozen=True, slots=True)
class GameFile:
    """A game that is read only when it is played."""

    path: Path
    goal: Goal

    def game(self, wording: Wording) -> Game:
        """Read the game; its wording is that of the file's own grammar. Raises `TaskDataError`."""
        del wording
        return parse_game(_read(self.path, MAX_GAME_BYTES), str(self.path), self.goal)


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    folder: str
    goal: Goal

    @property
    def task(self) -> Task[GameFile]:
        split, level = _FOLDERS[self.folder]
        return Task(self.path.parent.name, split, level, GameFile(self.path, self.goal))


def game_files(data: Path) -> list[Task[GameFile]]:
    """Return all games in the directory, from the index that the import made, else by reading every file."""
    index = data / _INDEX
    found = _indexed(data, index) if index.is_file() else _walk(data)
    return [item.task for item in found]


def copy_games(source: Path, target: Path) -> None:
    """Check and copy the games that belong to the benchmark, with an index."""
    entries = []
    for item in _walk(source):
        game = parse_game(_read(item.path, MAX_GAME_BYTES), str(item.path))
        try:
            check_pddl(game.domain, game.problem)
        except TaskDataError as error:
            raise TaskDataError(f"{item.path}: {error}") from None
        relative = item.path.relative_to(source)
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(item.path, target / relative)
        goal = item.goal
        entries.append(
            {"path": relative.as_posix(), "folder": item.folder, "goal": [goal.task_type, goal.thing, goal.receptacle]}
        )
    if entries:
        (target / _INDEX).write_text(json.dumps(entries, indent=0))


def _walk(data: Path) -> Iterator[_Found]:
    """Yield the games that ALFWorld plays: those of the six types that are marked as solvable."""
    for path in sorted(data.rglob(_GAME)):
        folder = next((part for part in reversed(path.parent.parts) if part in _FOLDERS), None)
        if folder is None:
            raise TaskDataError(f"{path} is in none of the folders {', '.join(_FOLDERS)}")
        goal = _goal(path)
        if goal is None:
            continue
        game = _json(_read(path, MAX_GAME_BYTES), path)
        if game.get("solvable", True):
            parse_game(json.dumps(game).encode(), str(path))
            yield _Found(path, folder, goal)


def _goal(game: Path) -> Goal | None:
    """Return the goal from the trajectory's parameters, else from the folder's name; None if its type is unknown."""
    named = parse_goal(game.parent.parent.name)
    path = game.parent / _TRAJECTORY
    if not path.is_file():
        return named[0] if named else None
    data = _json(_read(path, _MAX_TRAJECTORY_BYTES), path)
    task_type, parameters = data.get("task_type"), data.get("pddl_params")
    if not isinstance(task_type, str) or not isinstance(parameters, Mapping):
        raise TaskDataError(f"{path} lacks 'task_type' or 'pddl_params'")
    if task_type not in TASK_TYPES or parameters.get("object_sliced") or parameters.get("mrecep_target"):
        return None
    key = "toggle_target" if task_type == "look_at_obj_in_light" else "parent_target"
    thing, place = parameters.get("object_target"), parameters.get(key)
    if not (isinstance(thing, str) and thing and isinstance(place, str) and place):
        raise TaskDataError(f"{path}: 'pddl_params' must name 'object_target' and {key!r}")
    return Goal(task_type, thing, place)


def _indexed(data: Path, index: Path) -> Iterator[_Found]:
    entries = _parsed(_read(index, _MAX_TRAJECTORY_BYTES), index)
    root = data.resolve()
    try:
        for entry in entries:
            path = data / entry["path"]
            if not path.resolve().is_relative_to(root):
                raise TaskDataError(f"{index} names {entry['path']!r}, which is outside of {data}")
            if not path.is_file():
                raise TaskDataError(f"{index} names {entry['path']!r}, which is not there")
            if entry["folder"] not in _FOLDERS:
                raise KeyError(entry["folder"])
            yield _Found(path, entry["folder"], Goal(*map(str, entry["goal"])))
    except (KeyError, TypeError, AttributeError) as error:
        raise TaskDataError(f"{index} is damaged ({error}); import the games again") from None


def _read(path: Path, limit: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > limit:
            raise TaskDataError(f"{path} has {size} bytes; {limit} is the limit")
        return path.read_bytes()
    except OSError as error:
        raise TaskDataError(f"{path} cannot be read: {error.strerror}") from None


def _parsed(text: bytes, path: Path) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{path} is not JSON: {error}") from None


def _json(text: bytes, path: Path) -> dict[str, Any]:
    data = _parsed(text, path)
    if not isinstance(data, dict):
        raise TaskDataError(f"{path} must be a JSON object, is a {type(data).__name__}")
    return data
