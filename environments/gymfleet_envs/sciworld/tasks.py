"""The variations, upstream's splits of them, and the levels made of them."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from gymfleet_contracts.session import Split

from gymfleet_envs.sciworld.too_long import TOO_LONG
from gymfleet_envs.tasks import SPLITS, Task, TaskDataError, UnknownTask

VARIATIONS: Final[Mapping[str, int]] = {
    "boil": 30,
    "melt": 30,
    "freeze": 30,
    "change-the-state-of-matter-of": 30,
    "use-thermometer": 540,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "find-animal": 300,
    "grow-plant": 126,
    "grow-fruit": 126,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "lifespan-longest-lived": 125,
    "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168,
    "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "mendelian-genetics-known-plant": 120,
    "mendelian-genetics-unknown-plant": 480,
}
"""Upstream's tasks in upstream's order (1-1 to 10-2), with their numbers of variations: 7,207 in all."""
SIMPLIFICATIONS: Final = (
    "noElectricalAction",
    "openContainers",
    "openDoors",
    "selfWateringFlowerPots",
    "teleportAction",
)
EASY: Final = "easy"
"""All simplifications at once. The engine nevertheless keeps the electrical actions of electrical tasks."""
_ELECTRICAL: Final = ("power-component", "conductivity")
_LIFESPANS: Final = (
    "lifespan-longest-lived",
    "lifespan-shortest-lived",
    "lifespan-longest-lived-then-shortest-lived",
)
LEVELS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "intro": (_LIFESPANS, EASY),
    "easy": (
        (*_LIFESPANS, "find-non-living-thing", "find-living-thing", "find-plant", "find-animal"),
        "",
    ),
    "medium": (
        (
            "power-component", "power-component-renewable-vs-nonrenewable-energy", "identify-life-stages-2",
            "test-conductivity", "test-conductivity-of-unknown-substances", "use-thermometer", "chemistry-mix",
            "chemistry-mix-paint-secondary-color", "chemistry-mix-paint-tertiary-color",
            "measure-melting-point-known-substance",
        ),
        "",
    ),
    "hard": (
        (
            "identify-life-stages-1", "grow-plant", "grow-fruit", "melt", "boil", "freeze",
            "change-the-state-of-matter-of",
        ),
        "",
    ),
}  # fmt: skip
"""By level, easiest first: the tasks and the simplification under which they are played."""
PUBLISHED: Final = "published"
"""The level of the variations that the levels above leave out, named as for the benchmark as a whole."""
ALL: Final = "all"
_NOT_IN_AGENTGYM: Final = frozenset(
    {
        "grow-plant",
        "grow-fruit",
        "inclined-plane-determine-angle",
        "inclined-plane-friction-named-surfaces",
        "inclined-plane-friction-unnamed-surfaces",
        "mendelian-genetics-known-plant",
        "mendelian-genetics-unknown-plant",
    }
)
_NOT_RECORDED: Final = frozenset({"measure-melting-point-unknown-substance"})
_ITEM: Final = re.compile(r"(?:sciworld_)?([0-9]{1,5})")
_SPLIT_WORDS: Final[Mapping[str, Split]] = {
    "train": "train",
    "val": "validation",
    "validation": "validation",
    "dev": "validation",
    "valid": "validation",
    "test": "test",
}
_HELD_OUT: Final[tuple[Split, ...]] = ("test", "validation", "train")
_MAX_FILE_BYTES: Final = 64 * 2**20
_MAX_NAMED: Final = 100


@dataclass(frozen=True, slots=True)
class SciTask:
    """A ScienceWorld task, its variation and the simplifications under which it is played."""

    task: str
    variation: int
    simplifications: str = ""
    """As upstream writes them, sorted; empty for none."""

    @property
    def task_id(self) -> str:
        """`task/variation`, and the simplifications after another slash."""
        return "/".join(filter(None, (self.task, str(self.variation), self.simplifications)))


def simplified(text: str) -> str:
    """Return a list of simplifications in its only spelling. Raises `ValueError`."""
    names = sorted({name.strip() for name in text.split(",")} - {""})
    if names == [EASY]:
        return EASY
    if unknown := [name for name in names if name not in SIMPLIFICATIONS]:
        raise ValueError(f"no simplification {unknown[0][:64]!r}; there are {EASY} and {', '.join(SIMPLIFICATIONS)}")
    return ",".join(names)


def variations(task: str, split: Split) -> range:
    """Return the variations in upstream's split: two quarters, one quarter, and the rest."""
    count = VARIATIONS[task]
    quarter = count // 4
    bounds = {"train": (0, 2 * quarter), "validation": (2 * quarter, 3 * quarter), "test": (3 * quarter, count)}
    return range(*bounds[split])


def split_of(task: str, variation: int) -> Split:
    """Return the split into which upstream puts a variation."""
    return next(split for split in SPLITS if variation in variations(task, split))


def agentgym_games(*, recorded: bool) -> list[tuple[str, int]]:
    """Return task and variation by AgentGym's number, its `data_idx`.

    AgentGym's server counts the variations of all tasks but seven: 4,639 games with
    ScienceWorld 1.2.3. Its published episodes were recorded with a version that did not
    count the 300 of `measure-melting-point-unknown-substance`: 4,339 games.
    """
    left_out = _NOT_IN_AGENTGYM | (_NOT_RECORDED if recorded else frozenset())
    return [(task, index) for task, count in VARIATIONS.items() if task not in left_out for index in range(count)]


class SciTasks:
    """The variations, by level and split. Variations outside the levels can still be requested by id.

    Args:
        name: the benchmark's name.
        levels: the tasks of each level and split.
        simplifications: simplifications for ids that name none.
        games: task and variation by AgentGym's number.
        home: the level that a task found by its id belongs to.
        left_out: items that their lists contain but that are not offered there, each with the reason.
    """

    def __init__(
        self,
        name: str,
        levels: Mapping[str, Mapping[Split, Sequence[Task[SciTask]]]],
        *,
        default_level: str,
        simplifications: str,
        games: Sequence[tuple[str, int]],
        home: Callable[[SciTask], str],
        left_out: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.left_out = tuple(left_out)
        self.levels: Sequence[str] = tuple(levels)
        self.default_level: str = default_level
        self._levels = levels
        self._simplifications = simplifications
        self._games = games
        self._home = home
        # A task may be in several lists: its id finds the first one.
        listed = chain.from_iterable(chain.from_iterable(level.values()) for level in levels.values())
        self._listed: dict[str, Task[SciTask]] = {}
        for task in listed:
            self._listed.setdefault(task.task_id, task)

    def count(self, split: Split, level: str) -> int:
        """Return the number of tasks."""
        return len(self._table(split, level))

    def by_index(self, split: Split, level: str, index: int) -> Task[SciTask]:
        """Return a task by its place in the list."""
        table = self._table(split, level)
        if not 0 <= index < len(table):
            raise UnknownTask(
                f"sciworld has {len(table)} {split} tasks in {level}; index {index} is outside", count=len(table)
            )
        return table[index]

    def by_id(self, task_id: str) -> Task[SciTask]:
        """Return a task by `task/variation`, `task/variation/simplifications`, or AgentGym's number."""
        if listed := self._listed.get(task_id):
            return listed
        if _ITEM.fullmatch(task_id):
            return self._by_number(task_id)
        task, _, rest = task_id.partition("/")
        number, slash, names = rest.partition("/")
        if task in VARIATIONS and number.isascii() and number.isdigit() and len(number) <= 5:
            try:
                simplifications = simplified(names) if slash else self._simplifications
            except ValueError as error:
                raise UnknownTask(f"sciworld: {error}") from None
            if int(number) < VARIATIONS[task] and _playable(task, simplifications):
                data = SciTask(task, int(number), simplifications)
                return Task(task_id, split_of(task, data.variation), self._home(data), data)
        raise UnknownTask(
            f"sciworld has no task {task_id[:120]!r}; ids look like 'boil/3', 'boil/3/easy', or are AgentGym's "
            f"numbers, 0 to {len(self._games) - 1}"
        )

    def _by_number(self, task_id: str) -> Task[SciTask]:
        number = int(task_id.removeprefix("sciworld_"))
        if number >= len(self._games):
            raise UnknownTask(f"sciworld: AgentGym numbers its games 0 to {len(self._games) - 1}, not {number}")
        data = SciTask(*self._games[number], self._simplifications)
        return Task(task_id, split_of(data.task, data.variation), self._home(data), data)

    def _table(self, split: Split, level: str) -> Sequence[Task[SciTask]]:
        if level not in self._levels:
            raise UnknownTask(f"sciworld has no level {level!r}; it has {', '.join(self.levels)}")
        if split not in SPLITS:
            raise UnknownTask(f"sciworld has no split {split!r}; it has {', '.join(SPLITS)}")
        return self._levels[level].get(split, ())


def level_tasks(*, simplifications: str, recorded: bool) -> SciTasks:
    """Return, by difficulty, the variations that the engine's own solution solves within 100 moves."""
    return SciTasks(
        "scienceworld",
        {
            level: {split: _in_turns(names, split, level, kind, simplifications) for split in SPLITS}
            for level, (names, kind) in LEVELS.items()
        },
        default_level="easy",
        simplifications=simplifications,
        games=agentgym_games(recorded=recorded),
        home=lambda data: _level_of(data, simplifications),
    )  # fmt: skip


def published_tasks(*, simplifications: str, recorded: bool) -> SciTasks:
    """Return the benchmark as a whole: the level `all` in upstream's order, and one more level for each task."""
    table: dict[str, dict[Split, list[Task[SciTask]]]] = {ALL: {split: [] for split in SPLITS}}
    for name in VARIATIONS:
        table[name] = {}
        for split in SPLITS:
            data = [SciTask(name, index, simplifications) for index in variations(name, split)]
            table[name][split] = [Task(f"{one.task}/{one.variation}", split, name, one) for one in data]
            table[ALL][split] += [Task(f"{one.task}/{one.variation}", split, ALL, one) for one in data]
    games = agentgym_games(recorded=recorded)
    return SciTasks(
        "scienceworld", table, default_level=ALL, simplifications=simplifications, games=games, home=lambda _: ALL
    )


def agentgym_tasks(data: Path, *, simplifications: str, recorded: bool) -> SciTasks:
    """Return AgentGym's lists of items: `*.json` files of `data`, each with a split in its name.

    Each is a list of `{"item_id": "sciworld_1571", ...}` or of bare ids. An item in two lists is left out of the one
    for training, because AgentGym's published lists share items. Raises `TaskDataError`.
    """
    level = "agentgym"
    games = agentgym_games(recorded=recorded)
    listed, left_out = _listed_numbers(data, len(games))
    if not any(listed.values()):
        raise TaskDataError(
            f"sciworld: {data} holds nothing to import: ScienceWorld's tasks come with its package. AgentGym's lists "
            "of items are taken: *.json with 'train', 'val' or 'test' in the name, such as sciworld_test.json"
        )
    table: dict[Split, list[Task[SciTask]]] = {
        split: [Task(str(number), split, level, SciTask(*games[number], simplifications)) for number in numbers]
        for split, numbers in listed.items()
    }
    return SciTasks(
        "agentgym",
        {level: table},
        default_level=level,
        simplifications=simplifications,
        games=games,
        home=lambda _: level,
        left_out=left_out,
    )


def _listed_numbers(data: Path, num_games: int) -> tuple[dict[Split, list[int]], list[str]]:
    """Return each split's numbers in the order of its files, and the numbers left out of each file, with the reason.

    A number in the lists of two splits stays in the split that is held out further.
    """
    found: dict[Split, dict[int, None]] = {split: {} for split in SPLITS}
    left_out: list[str] = []
    paths = [(split, path) for path in sorted(data.glob("*.json")) if (split := _split_of_file(path)) is not None]
    for split, path in sorted(paths, key=lambda at: _HELD_OUT.index(at[0])):
        dropped: dict[str, list[int]] = {}
        for number in _numbers(path):
            if number >= num_games:
                raise TaskDataError(
                    f"sciworld: {path}: AgentGym numbers its games 0 to {num_games - 1}, not {number}; its server with "
                    f"ScienceWorld 1.2.3 numbers 4,639, its recorded episodes 4,339: option agentgym_numbering"
                )
            if holder := next((held for held in _HELD_OUT if number in found[held]), None):
                dropped.setdefault("twice" if holder == split else f"in {holder} too", []).append(number)
            else:
                found[split][number] = None
        left_out += [f"{path.name}: {_shown(numbers)} {why}" for why, numbers in dropped.items()]
    return {split: list(numbers) for split, numbers in found.items()}, left_out


def _shown(numbers: Sequence[int]) -> str:
    some = ", ".join(map(str, numbers[:_MAX_NAMED]))
    more = "" if len(numbers) <= _MAX_NAMED else " and more"
    return f"{len(numbers)} {'item' if len(numbers) == 1 else 'items'} ({some}{more})"


def _split_of_file(path: Path) -> Split | None:
    words = re.split(r"[^a-z]+", path.stem.lower())
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), None)


def _numbers(path: Path) -> Iterable[int]:
    if path.stat().st_size > _MAX_FILE_BYTES:
        raise TaskDataError(f"sciworld: {path}: larger than {_MAX_FILE_BYTES} bytes")
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TaskDataError(f"sciworld: {path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise TaskDataError(f'sciworld: {path} must hold a list of items, as in [{{"item_id": "sciworld_12"}}]')
    for place, row in enumerate(rows):
        item = row.get("item_id") if isinstance(row, dict) else row
        match = _ITEM.fullmatch(str(item))
        if match is None:
            raise TaskDataError(f"sciworld: {path}: entry {place}: {str(item)[:80]!r} is no item like 'sciworld_12'")
        yield int(match[1])


def _level_of(data: SciTask, default: str) -> str:
    for level, (names, kind) in LEVELS.items():
        if (
            data.task in names
            and data.simplifications == (kind or default)
            and (data.task, data.variation) not in TOO_LONG
        ):
            return level
    return PUBLISHED


def _playable(task: str, simplifications: str) -> bool:
    """Return whether a task can be played: upstream refuses electrical tasks without electrical actions."""
    return "noElectricalAction" not in simplifications or not any(word in task for word in _ELECTRICAL)


def _in_turns(names: Sequence[str], split: Split, level: str, kind: str, default: str) -> list[Task[SciTask]]:
    """Return the variations of several tasks, one of each in turn, so that any stretch of the list holds all tasks."""
    lists = [[index for index in variations(name, split) if (name, index) not in TOO_LONG] for name in names]
    found = []
    for place in range(max(map(len, lists))):
        for name, numbers in zip(names, lists, strict=True):
            if place < len(numbers):
                task_id = SciTask(name, numbers[place], kind).task_id
                found.append(Task(task_id, split, level, SciTask(name, numbers[place], kind or default)))
    return found
