"""The package's games: which can be played, each one's words for a win, and how one begins from a seed."""

import importlib
import random
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from gymfleet_envs.tasks import GeneratedTasks, TaskDataError
from gymfleet_envs.textarena.play import Play, begin

_ASKS_A_MODEL: Final = "it asks a model of openrouter.ai, beyond any seed"
_DOWNLOADS: Final = "it downloads a corpus of nltk when it is imported"
_ONE_BEGINNING: Final = "every seed begins alike, so nothing could be held out"
REFUSED: Final[Mapping[str, str]] = {
    "BabyAiText": "it needs packages that TextArena does not install",
    "Blackjack": "it has no win, only a share of hands won",
    "Countdown": _ONE_BEGINNING,
    "Cryptarithm": _ONE_BEGINNING,
    "FifteenPuzzle": "half of its boards cannot be solved, and the others make it fail when they are",
    "GuessWho": _ASKS_A_MODEL,
    "Hangman": _DOWNLOADS,
    "Klondike": "its module does not parse",
    "LogicPuzzle": "several marks at once are answered in the order of one of Python's sets, other in every process",
    "PegJump": _ONE_BEGINNING,
    "Set": "it has no win, only points",
    "Sokoban": "drawing its rooms can take minutes",
    "Sudoku-v0-hard": "drawing one of its grids can take half a minute",
    "TowerOfHanoi": _ONE_BEGINNING,
    "TwentyQuestions": _ASKS_A_MODEL,
    "UltimateTexasHoldem": "it takes for a win to have chips left",
    "WordLadder": _DOWNLOADS,
    "WordSearch": _DOWNLOADS,
    "Wordle": _DOWNLOADS,
}
"""Families of single-player games, and single games, that are not played, each with the reason."""
WON: Final[Mapping[str, str]] = {
    "Bandit": "Congratulations! ",
    "Crosswords": "Congratulations! ",
    "FrozenLake": "Congratulations! ",
    "Game2048": "Congratulations, ",
    "GuessTheNumber": "Congratulations! ",
    "LightsOut": "Congratulations! ",
    "Mastermind": "You have cracked the code",
    "Minesweeper": "Congratulations! ",
    "RushHour": "Puzzle solved!",
    "Secretary": "You accepted value ",
    "Slitherlink": "\N{PARTY POPPER} You formed a single loop!",
    "Sudoku": "Congratulations! ",
    "ThreeCardMonte": "Correct! ",
}
"""The families of single-player games that are played, each with the first words of the reason for a won game's end."""
DRAWS_IN_PLAY: Final = frozenset({"Bandit", "Game2048", "Minesweeper"})
"""Families that also draw after the beginning: these draws depend on the seed and the number of actions so far."""
_SPLIT_BY_SEED: Final = DRAWS_IN_PLAY | {"Sudoku"}
"""Families whose games differ whenever their seeds do, so that no Sudoku has to be drawn ten times to keep one."""
_PREFIX: Final = "textarena.envs."
_MAX_SEED: Final = 2**31
_TRIES: Final = 100
_WRAPPED: Final = ("-raw", "-train")
_MISSING: Final = "the package textarena is missing; install gymfleet[env-textarena]"


@dataclass(frozen=True)
class Beginning:
    """A game with its seed."""

    game: str
    seed: int
    num_players: int = 1

    @cached_property
    def play(self) -> Play:
        """The game at its beginning; only copies of it are played. Raises the game's own errors."""
        return begin(_made(self.game), f"{self.game}/{self.seed}", self.seed, self.num_players)

    @property
    def content(self) -> str:
        """A text that differs for different tasks: the game's beginning, or its seed."""
        by_seed = self.num_players > 1 or family_of(self.game) in _SPLIT_BY_SEED
        return f"{self.game}\n{self.seed if by_seed else self.play.content()}"


def single_player_tasks(names: Collection[str]) -> GeneratedTasks[Beginning]:
    """Return the games' tasks, each game a level. Raises `TaskDataError`, ImportError."""
    _check(names, playable(), REFUSED)
    return _tasks("textarena", tuple(names), 1)


def two_player_tasks(names: Collection[str], known: Collection[str]) -> GeneratedTasks[Beginning]:
    """Return the games' tasks, each game a level. Raises `TaskDataError`, ImportError."""
    _check(names, known, {})
    return _tasks("textarena_two_players", tuple(names), 2)


def playable() -> tuple[str, ...]:
    """Return the ids of the single-player games that are played, in the package's order."""
    names = [name for name in _registered() if family_of(name) in WON and not name.endswith(_WRAPPED)]
    return tuple(name for name in names if name not in REFUSED)


def family_of(name: str) -> str:
    """Return the package's folder that holds the game."""
    return str(_registered()[name].entry_point).removeprefix(_PREFIX).partition(".")[0]


def _tasks(environment: str, names: tuple[str, ...], num_players: int) -> GeneratedTasks[Beginning]:
    def drawn(rng: random.Random, name: str) -> Beginning:
        for _ in range(_TRIES):
            task = Beginning(name, rng.randrange(_MAX_SEED), num_players)
            try:
                _ = task.content
            except ZeroDivisionError:  # the lights of LightsOut may all be out when it begins
                continue
            return task
        raise TaskDataError(f"{name}: {_TRIES} seeds in a row begin with no game")

    return GeneratedTasks(environment, drawn, lambda task: task.content, levels=names)


def _check(names: Collection[str], known: Collection[str], refused: Mapping[str, str]) -> None:
    for name in names:
        if name in known:
            continue
        family = family_of(name) if name in _registered() else ""
        if reason := refused.get(name, refused.get(family)):
            raise TaskDataError(f"{name} is not played: {reason}")
        raise TaskDataError(f"there is no game {name[:80]!r} to play; known: {', '.join(known)}")
    if twice := [name for name in names if list(names).count(name) > 1]:
        raise TaskDataError(f"games names {twice[0]} twice")


def _registered() -> Mapping[str, Any]:
    try:
        with warnings.catch_warnings():  # it silences some of the process's
            from textarena.envs.registration import (  # noqa: PLC0415 - nltk: heavy, and for this environment alone
                ENV_REGISTRY,
            )
    except ModuleNotFoundError as error:
        if error.name != "textarena":
            raise
        raise ModuleNotFoundError(_MISSING, name="textarena") from None
    return ENV_REGISTRY  # type: ignore[no-any-return]


def _made(name: str) -> Any:
    """Return the game without the package's wrappers, which repeat the whole history in every observation."""
    spec = _registered()[name]
    module, _, kind = spec.entry_point.partition(":")
    return getattr(importlib.import_module(module), kind)(**spec.kwargs)
