"""Benchmark tasks: ALFWorld's game files, or games made for the names that the benchmarks list."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from gymfleet_envs.alfworld.files import GameFile, copy_games, game_files
from gymfleet_envs.alfworld.game import Game
from gymfleet_envs.alfworld.names import NamedHousehold, agentgym_numbers, copy_lists, named_households
from gymfleet_envs.alfworld.wording import Wording
from gymfleet_envs.tasks import ListedTasks, Task, TaskDataError, TaskSource


class HouseTask(Protocol):
    """A household to generate a game from, or a game file."""

    def game(self, wording: Wording) -> Game:
        """Return the game. Raises `TaskDataError`."""


class NumberedTasks(ListedTasks[HouseTask]):
    """Tasks by their trial's name; AgentGym's mappings translate its numbers to these names."""

    def __init__(self, name: str, tasks: Sequence[Task[HouseTask]], numbers: Mapping[str, str]) -> None:
        super().__init__("alfworld", name, tasks)
        self._numbers = numbers

    def by_id(self, task_id: str) -> Task[HouseTask]:
        """Return a task by its trial's name, or by AgentGym's number for it."""
        return super().by_id(self._numbers.get(task_id, task_id))


def benchmark_tasks(data: Path) -> TaskSource[HouseTask]:
    """Return the game files if there are any in the directory, else games for the names in its lists."""
    _check_directory(data)
    numbers = agentgym_numbers(data)
    files = game_files(data)
    if files:
        return NumberedTasks("alfworld games", [_widened(task) for task in files], numbers)
    households = named_households(data)
    if households:
        return NumberedTasks("alfworld names", [_widened(task) for task in households], numbers)
    raise TaskDataError(
        f"{data} has neither game files (**/game.tw-pddl) nor lists of names (mappings_train.json, mappings_test.json, "
        "train_valid.json, new_std.json, standard.json, dev.json)"
    )


def import_games(source: Path, target: Path) -> None:
    """Copy the game files that can be played, the lists and the floor plans. Raises `TaskDataError`."""
    _check_directory(source)
    copy_games(source, target)
    copy_lists(source, target)


def _check_directory(data: Path) -> None:
    if not data.is_dir():
        raise TaskDataError(f"{data} is no directory")


def _widened(task: Task[GameFile] | Task[NamedHousehold]) -> Task[HouseTask]:
    return Task(task.task_id, task.split, task.level, task.data)
