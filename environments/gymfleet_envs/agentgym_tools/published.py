"""AgentGym's published tasks: files such as `todo.jsonl`, one task per line, with AgentGym's own numbers as ids."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from gymfleet_contracts.session import Split

from gymfleet_envs.task_files import read_text
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError

_MAX_BYTES: Final = 16 * 2**20
TaskT = TypeVar("TaskT")


@dataclass(frozen=True, slots=True)
class Published:
    """One line of a file."""

    number: int
    goal: str
    level: str
    subgoals: Any
    answer: Any
    config: Mapping[str, str]
    """The user's `current_date` and `current_location`, where the environment has them."""


class PublishedTasks(ListedTasks[TaskT], Generic[TaskT]):
    """Tasks by their numbers; `todo_7`, the name of todo's task 7 in AgentGym's data sets, works too."""

    def by_id(self, task_id: str) -> Task[TaskT]:
        """Return a task by its number, or by AgentGym's name for it."""
        return super().by_id(task_id.removeprefix(f"{self._env}_"))


def read_published(env: str, data: Path, *, configured: bool = False) -> list[Published]:
    """Return the tasks of `data/ENV.jsonl`. Raises `TaskDataError`, which names the line and the fault."""
    path = data / f"{env}.jsonl"
    if not path.is_file():
        raise TaskDataError(f"{env}: {data} has no {path.name}: AgentGym's tasks are read from it")
    lines = read_text(env, path, max_bytes=_MAX_BYTES).split("\n")
    tasks = [_read(env, f"{path}:{i}", line, configured) for i, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise TaskDataError(f"{env}: {path}: it has no task")
    return tasks


def listed(
    env: str, tasks: Sequence[tuple[Published, TaskT]], *, tested: Collection[int] | None
) -> PublishedTasks[TaskT]:
    """Return a source of tasks. Those in `tested` (None means all) are for testing, the others for training."""

    def split(number: int) -> Split:
        return "test" if tested is None or number in tested else "train"

    return PublishedTasks(
        env, "agentgym", [Task(str(read.number), split(read.number), "agentgym", data) for read, data in tasks]
    )


def _read(env: str, where: str, line: str, configured: bool) -> Published:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise TaskDataError(f"{env}: {where}: it is no JSON") from None
    extra = row.get("additional_info") if isinstance(row, dict) else None
    if not isinstance(extra, dict) or "answer" not in extra or "subgoals" not in row:
        raise TaskDataError(f"{env}: {where}: a task is an object with id, goal, subgoals and additional_info.answer")
    number, goal = row.get("id"), row.get("goal")
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise TaskDataError(f"{env}: {where}: id is {number!r}; a number from 0 on is right")
    if not isinstance(goal, str) or not goal.strip():
        raise TaskDataError(f"{env}: {where}: goal is no text")
    if extra.get("tool", env) != env:
        raise TaskDataError(f"{env}: {where}: it is a task of {extra['tool']!r}")
    config = extra.get("init_config") or {}
    if not isinstance(config, dict):
        raise TaskDataError(f"{env}: {where}: init_config is no object")
    if configured and not all(isinstance(config.get(key), str) for key in ("current_date", "current_location")):
        raise TaskDataError(f"{env}: {where}: init_config has no current_date or no current_location")
    return Published(number, goal, str(row.get("difficulty", "")), row["subgoals"], extra["answer"], config)
