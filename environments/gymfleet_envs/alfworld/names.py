"""Games for the names that benchmarks list: the same task type, thing, receptacle and scene, in a generated household.

AgentGym's `mappings_train.json` and `mappings_test.json` number trials; AgentBench's lists
hold the paths of game files. The games themselves are ALFWorld's; the games made here replace
them where they are not available. With the floor plans' files in `gen/layouts`, each scene has
its own furniture and kinds of things.
"""

import json
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.session import Split

from gymfleet_envs.alfworld.game import Game, Goal, parse_goal
from gymfleet_envs.alfworld.generate import furnish
from gymfleet_envs.alfworld.rooms import ROOMS
from gymfleet_envs.alfworld.vocabulary import HOLDS, LAMPS, SINK
from gymfleet_envs.alfworld.wording import Wording
from gymfleet_envs.tasks import Task, TaskDataError

_MAPPINGS: Final[Mapping[str, Split]] = {"mappings_train.json": "train", "mappings_test.json": "test"}
_PATH_LISTS: Final = ("train_valid.json", "new_std.json", "standard.json", "dev.json")
_PATH_SPLITS: Final[Mapping[str, Split]] = {"train": "train", "valid_seen": "validation", "valid_unseen": "test"}
_LAYOUTS: Final = Path("gen/layouts")
_ROOM_OF_HUNDRED: Final[Mapping[int, str]] = {0: "kitchen", 2: "living room", 3: "bedroom", 4: "bathroom"}
_TRIAL: Final = re.compile(r"trial_[A-Za-z0-9_]{1,60}")
_MAX_LIST_BYTES: Final = 32 << 20
_MAX_RECEPTACLES: Final = 40
_NUM_THINGS: Final = (12, 26)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A scene's furniture, and the kinds of things in it."""

    furniture: tuple[str, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NamedHousehold:
    """A trial's name and goal; its household follows from them."""

    trial: str
    goal: Goal
    scene: str
    plan: _Plan | None

    def game(self, wording: Wording) -> Game:
        """Return the game, which is the same for the same name on any machine."""
        rng = random.Random(f"{self.trial}/{self.goal}/{self.scene}")
        room = ROOMS[_room(self.scene)]
        furniture: list[str] = []
        if self.plan is not None:
            furniture += self.plan.furniture
        else:
            for kind, (fewest, most) in room.furniture.items():
                furniture += [kind] * rng.randint(fewest, most)
        kinds = self.plan.kinds if self.plan is not None else room.things
        return furnish(rng, self.goal, furniture, kinds, rng.randint(*_NUM_THINGS)).game(wording)


def named_households(data: Path) -> list[Task[NamedHousehold]]:
    """Return all names in the directory's lists, AgentGym's in the order of its numbers. Raises `TaskDataError`."""
    tasks: dict[str, Task[NamedHousehold]] = {}
    plans: dict[str, _Plan | None] = {}
    for trial, name, split, level, where in _listed(data):
        if trial in tasks:
            continue
        if "Sliced" in name or "movable" in name:  # which ALFWorld's text games leave out
            continue
        parsed = parse_goal(name)
        if not _TRIAL.fullmatch(trial) or parsed is None:
            raise TaskDataError(f"{where} is not like 'pick_and_place_simple-Mug-None-Desk-308' with 'trial_T2019...'")
        goal, scene = parsed
        if scene not in plans:
            _check_scene(scene, where)
            plans[scene] = _plan(data / _LAYOUTS, scene)
        tasks[trial] = Task(trial, split, level, NamedHousehold(trial, goal, scene, plans[scene]))
    return list(tasks.values())


def copy_lists(source: Path, target: Path) -> None:
    """Copy the lists and the floor plans, and nothing else."""
    for name in (*_MAPPINGS, *_PATH_LISTS):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if (source / _LAYOUTS).is_dir():
        (target / _LAYOUTS).mkdir(parents=True, exist_ok=True)
        for path in sorted((source / _LAYOUTS).glob("FloorPlan*.json")):
            shutil.copyfile(path, target / _LAYOUTS / path.name)


def _listed(data: Path) -> Iterator[tuple[str, str, Split, str, str]]:
    """Yield trial, task name, split, level, and place in the lists."""
    for file, split in _MAPPINGS.items():
        for number, trial, name in _mapping(data / file):
            yield trial, name, split, "agentgym", f"{data / file}, item_id {number}: {name!r}"
    for file in _PATH_LISTS:
        if not (data / file).is_file():
            continue
        groups = _read(data / file)
        if not isinstance(groups, dict) or not all(isinstance(group, list) for group in groups.values()):
            raise TaskDataError(f"{data / file} must be an object of lists of paths")
        for path in (path for group in groups.values() for path in group):
            parts = str(path).split("/")
            if len(parts) < 4 or parts[-4] not in _PATH_SPLITS:
                raise TaskDataError(f"{data / file}: {path!r} is not like 'json_2.1.1/train/TASK/TRIAL/game.tw-pddl'")
            yield parts[-2], parts[-3], _PATH_SPLITS[parts[-4]], "agentbench", f"{data / file}: {path!r}"


def agentgym_numbers(data: Path) -> dict[str, str]:
    """Return the trials' names by AgentGym's number, if the mappings are there."""
    return {str(number): trial for file in _MAPPINGS for number, trial, _ in _mapping(data / file)}


def _mapping(path: Path) -> list[tuple[int, str, str]]:
    """Return number, trial and task name, in the order of the numbers; nothing without the file."""
    if not path.is_file():
        return []
    entries = _read(path)
    try:
        return sorted((int(item["item_id"]), str(item["task_id"]), str(item["task_type"])) for item in entries)
    except (KeyError, TypeError, ValueError) as error:
        raise TaskDataError(f"{path}: an entry lacks item_id, task_id or task_type ({error})") from None


def _plan(layouts: Path, scene: str) -> _Plan | None:
    """Read the plan from the floor plan's files; None without them."""
    objects_path, places_path = layouts / f"FloorPlan{scene}-objects.json", layouts / f"FloorPlan{scene}-openable.json"
    if not (objects_path.is_file() and places_path.is_file()):
        return None
    objects, places = _read(objects_path), _read(places_path)
    if not isinstance(objects, list) or not isinstance(places, dict):
        raise TaskDataError(f"{objects_path} must be a list of kinds, and {places_path} an object of places")
    present = {str(kind) for kind in objects}
    counts = Counter(name.split("|")[0] for name in places)
    if "Sink" in counts:
        counts[SINK] = counts.pop("Sink")
    for kind in present:
        counts[kind] = max(counts[kind], 1)
    furniture = [kind for kind in sorted(counts) if kind in HOLDS for _ in range(counts[kind])]
    kinds = sorted(kind for kind in present if any(kind in held for held in HOLDS.values()) and kind not in LAMPS)
    return _Plan(tuple(furniture[:_MAX_RECEPTACLES]), tuple(kinds))


def _room(scene: str) -> str:
    return _ROOM_OF_HUNDRED[int(scene) // 100]


def _check_scene(scene: str, where: str) -> None:
    if not (scene.isascii() and scene.isdigit() and int(scene) // 100 in _ROOM_OF_HUNDRED and len(scene) <= 3):
        raise TaskDataError(f"{where}: {scene!r} is no floor plan's number (1-30, 201-230, 301-330, 401-430)")


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _MAX_LIST_BYTES:
            raise TaskDataError(f"{path} is larger than {_MAX_LIST_BYTES} bytes")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise TaskDataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"{path} is not JSON: {error}") from None
