"""Sources of tasks: generated from seeds, or read from a benchmark's files."""

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from gymfleet_contracts.session import Split

SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")
_BUCKETS: Final = 10
_SPLIT_OF_BUCKET: Final[Mapping[int, Split]] = {8: "validation", 9: "test"}  # the other eight buckets are train
_COUNTS: Final[Mapping[Split, int]] = {"train": 100_000, "validation": 1_000, "test": 1_000}
_MAX_DRAWS: Final = 10_000
_MAX_REMEMBERED: Final = 256
"""Number of drawn tasks that are kept for each environment."""

TaskT = TypeVar("TaskT")
TaskT_co = TypeVar("TaskT_co", covariant=True)


class TaskDataError(Exception):
    """Benchmark data is missing or damaged. The message names the file, the entry and the fault."""


class UnknownTask(LookupError):
    """There is no such split, level, index or id. `count` is the number of tasks when an index is out of range."""

    def __init__(self, detail: str, *, count: int | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.count = count


@dataclass(frozen=True, slots=True)
class Task(Generic[TaskT_co]):
    """A task with its split and level. `task_id` is the benchmark's own if it has one."""

    task_id: str
    split: Split
    level: str
    data: TaskT_co
    step_timeout_s: float | None = None
    """How long one call of the environment may take in this task, instead of the server's own limit: for a task that
    compiles for minutes. At most the environment's `step_timeout_s`."""
    episode_timeout_s: float | None = None
    """How old a session of this task may grow, if it is less than the server's own limit."""


class TaskSource(Protocol[TaskT_co]):
    """A table of tasks: by split, level and index, or by id."""

    @property
    def name(self) -> str:
        """`generated`, or the benchmark's name."""

    @property
    def levels(self) -> Sequence[str]:
        """Difficulty levels, easiest first."""

    @property
    def default_level(self) -> str:
        """The level for a request that names none."""

    def count(self, split: Split, level: str) -> int:
        """Return the number of tasks."""

    def by_index(self, split: Split, level: str, index: int) -> Task[TaskT_co]:
        """Return the task at an index. Raises `UnknownTask`."""

    def by_id(self, task_id: str) -> Task[TaskT_co]:
        """Return the task with an id. Raises `UnknownTask`."""


class GeneratedTasks(Generic[TaskT]):
    """Unlimited seeded tasks whose splits are disjoint by content.

    The hash of a task's fingerprint decides its split; task i of a split is the
    first of its own sequence of draws that falls into the split. So no task of
    one split can equal a task of another, on any machine and in any order of calls.

    Args:
        generate: makes a task of a level from a random generator.
        fingerprint: text that is equal for equal tasks.
        default_level: the first of `levels` unless given.
        counts: the number of tasks offered per split.
        name: the name of the benchmark, if tasks are drawn from its data.
        accepts: whether a task is fit to be played, such as one that the expert solves; called only for tasks of the
            wanted split, because it may take long.
    """

    def __init__(
        self,
        env: str,
        generate: Callable[[random.Random, str], TaskT],
        fingerprint: Callable[[TaskT], str],
        *,
        levels: Sequence[str],
        default_level: str | None = None,
        counts: Mapping[Split, int] = _COUNTS,
        name: str = "generated",
        accepts: Callable[[TaskT], bool] = lambda _: True,
    ) -> None:
        self._env = env
        self.name = name
        self._generate = generate
        self._fingerprint = fingerprint
        self._accepts = accepts
        self.levels = tuple(levels)
        self.default_level = default_level or self.levels[0]
        self._counts = dict(counts)
        self._drawn: OrderedDict[tuple[Split, str, int], Task[TaskT]] = OrderedDict()

    def count(self, split: Split, level: str) -> int:
        """Return the number of tasks offered, which is the same at every level."""
        self._check(split, level)
        return self._counts[split]

    def by_index(self, split: Split, level: str, index: int) -> Task[TaskT]:
        """Draw until the task's own hash puts it into the split.

        The task is cached for a while if it is immutable, because all episodes of a group play the same task.
        """
        if (drawn := self._drawn.get((split, level, index))) is not None:
            return drawn
        task = self._draw(split, level, index)
        if _is_constant(task.data):
            self._drawn[split, level, index] = task
            if len(self._drawn) > _MAX_REMEMBERED:
                self._drawn.popitem(last=False)
        return task

    def _draw(self, split: Split, level: str, index: int) -> Task[TaskT]:
        self._check(split, level)
        if not 0 <= index < self._counts[split]:
            raise UnknownTask(
                f"{self._env} has {self._counts[split]} {split} tasks; index {index} is outside",
                count=self._counts[split],
            )
        for draw in range(_MAX_DRAWS):
            data = self._generate(random.Random(f"{self._env}/{level}/{split}/{index}/{draw}"), level)
            if split_of(self._fingerprint(data)) == split and self._accepts(data):
                return Task(task_id=f"{level}.{split}.{index}", split=split, level=level, data=data)
        raise UnknownTask(f"{self._env} level {level} is too small to have a {split} split")

    def by_id(self, task_id: str) -> Task[TaskT]:
        """Return the task with an id of the form `level.split.index`."""
        parts = task_id.rsplit(".", 2)
        if len(parts) == 3 and parts[1] in SPLITS and parts[2].isascii() and parts[2].isdigit():
            split: Split = next(name for name in SPLITS if name == parts[1])
            return self.by_index(split, parts[0], int(parts[2]))
        raise UnknownTask(f"{self._env} has no task {task_id!r}; ids look like '{self.default_level}.train.0'")

    def _check(self, split: Split, level: str) -> None:
        if split not in self._counts:
            raise UnknownTask(f"{self._env} has no split {split!r}; it has {sorted(self._counts)}")
        if level not in self.levels:
            raise UnknownTask(f"{self._env} has no level {level!r}; it has {', '.join(self.levels)}")


class ListedTasks(Generic[TaskT]):
    """Tasks read from a benchmark's files: a fixed list with the benchmark's own ids.

    Args:
        left_out: files and tasks that exist but cannot be played, each with the reason.
    """

    def __init__(self, env: str, name: str, tasks: Sequence[Task[TaskT]], *, left_out: Sequence[str] = ()) -> None:
        self._env = env
        self.left_out = tuple(left_out)
        self.name = name
        self._by_id = {task.task_id: task for task in tasks}
        if len(self._by_id) != len(tasks):
            raise TaskDataError(f"{env}: {name} lists a task id twice")
        self.levels = tuple(dict.fromkeys(task.level for task in tasks)) or ("default",)
        self.default_level = self.levels[0]
        self._table: dict[tuple[Split, str], list[Task[TaskT]]] = {}
        for task in tasks:
            self._table.setdefault((task.split, task.level), []).append(task)

    def count(self, split: Split, level: str) -> int:
        """Return the number of tasks in the files."""
        return len(self._table.get((split, level), ()))

    def by_index(self, split: Split, level: str, index: int) -> Task[TaskT]:
        """Return the task at an index, in the order of the files."""
        table = self._table.get((split, level), [])
        if not 0 <= index < len(table):
            raise UnknownTask(
                f"{self._env} has {len(table)} tasks in {split}/{level}; index {index} is outside", count=len(table)
            )
        return table[index]

    def by_id(self, task_id: str) -> Task[TaskT]:
        """Return the task with the benchmark's own id."""
        try:
            return self._by_id[task_id]
        except KeyError:
            raise UnknownTask(f"{self._env}: {self.name} has no task {task_id!r}") from None


def split_of(fingerprint: str) -> Split:
    """Return the split that a task belongs to by its content: 8 in 10 train, 1 validation, 1 test."""
    bucket = int.from_bytes(hashlib.sha256(fingerprint.encode()).digest()[:8], "big") % _BUCKETS
    return _SPLIT_OF_BUCKET.get(bucket, "train")


def _is_constant(data: object) -> bool:
    """Return whether the data is hashed by its content, which only immutable data should be."""
    if type(data).__hash__ is object.__hash__:
        return False
    try:
        hash(data)
    except TypeError:
        return False
    return True
