"""Generated games: the package's challenges, each level one of them at one difficulty."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

from gymfleet_envs.tasks import GeneratedTasks
from gymfleet_envs.textworld.expert import solves
from gymfleet_envs.textworld.game import Game, read_game
from gymfleet_envs.textworld.package import NoSuchGame, challenge, generate, logic_for, package

_MAX_SEED: Final = 2**31
_CACHED_GAMES: Final = 64
_SKILLS: Final[Mapping[str, Any]] = {
    "open": True, "cook": True, "cut": True, "drop": False, "recipe_seed": 0, "split": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Level:
    challenge: str
    settings: Mapping[str, Any]
    turn_limit: int
    brief: bool = False
    """Whether the objective states only the last action instead of the whole way."""


_LEVELS: Final[Mapping[str, _Level]] = {
    "coin_collector": _Level("coin_collector", {"level": 5}, 20),
    "treasure_hunter": _Level("treasure_hunter", {"level": 7}, 20),
    "cooking": _Level("cooking", {**_SKILLS, "recipe": 1, "take": 1, "go": 1}, 30),
    "simple": _Level("simple", {"rewards": "dense", "goal": "brief", "test": False}, 50),
    "coin_collector_maze": _Level("coin_collector", {"level": 108}, 60, brief=True),
    "treasure_hunter_doors": _Level("treasure_hunter", {"level": 13}, 60, brief=True),
    "cooking_house": _Level("cooking", {**_SKILLS, "recipe": 2, "take": 2, "go": 6}, 70),
    "cooking_town": _Level("cooking", {**_SKILLS, "recipe": 3, "take": 3, "go": 12}, 100),
}
"""The challenges' own settings: see `textworld.challenges`."""


@dataclass(frozen=True, slots=True)
class Seeded:
    """A level with a seed."""

    level: str
    seed: int

    @property
    def game(self) -> Game:
        """The game of this seed."""
        return _made(self)

    @property
    def turn_limit(self) -> int:
        """The most commands that may be given."""
        return _LEVELS[self.level].turn_limit


def generated_tasks() -> GeneratedTasks[Seeded]:
    """Return the default tasks. Raises ModuleNotFoundError if the package is missing."""
    package()
    return GeneratedTasks(
        "textworld",
        lambda rng, level: Seeded(level, _seed(rng)),
        repr,
        levels=tuple(_LEVELS),
        counts={"train": 20_000, "validation": 1_000, "test": 1_000},
        accepts=_can_be_won,
    )


def _can_be_won(task: Seeded) -> bool:
    try:
        return solves(task.game)
    except NoSuchGame:
        return False


def _seed(rng: random.Random) -> int:
    return rng.randrange(_MAX_SEED)


_PLAYED: Final[WeakValueDictionary[Seeded, Game]] = WeakValueDictionary()
"""The games that are being played: the sessions of a task share one, however many others were made since."""


@lru_cache(maxsize=_CACHED_GAMES)
def _made(task: Seeded) -> Game:
    if (played := _PLAYED.get(task)) is not None:
        return played
    level = _LEVELS[task.level]
    make = challenge(level.challenge).make
    data = generate(lambda options: make(dict(level.settings), options), task.seed, brief=level.brief)
    return _PLAYED.setdefault(task, read_game(_as_json(data), logic_for(data["KB"]["logic"])))


def _as_json(data: Any) -> Any:
    """Return the data as it would be read back from a file: lists instead of tuples."""
    if isinstance(data, Mapping):
        return {key: _as_json(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_as_json(value) for value in data]
    return data
