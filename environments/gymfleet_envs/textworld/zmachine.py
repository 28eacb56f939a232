"""A Z-machine game of your own, such as `zork1.z5`, run by the interpreter of the package jericho (GPL-2.0)."""

import random
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from gymfleet_contracts.session import ForkSupport, Split

from gymfleet_envs.environment import Environment, Options, Outcome
from gymfleet_envs.tasks import GeneratedTasks, TaskDataError, TaskSource

_LEVEL: Final = "game"
_COUNTS: Final[Mapping[Split, int]] = {"train": 1_000, "validation": 100, "test": 100}
_MAX_SEED: Final = 2**15
_MAX_CHARS: Final = 100
_MAX_BYTES: Final = 1 << 20
_MISSING: Final = "the package jericho is missing; install gymfleet[env-alfworld]"
_READ_LETTERS: Final = 6
"""The letters of a word that the oldest games read: to them, `scripting` is `script`."""
_NOT_PLAY: Final = frozenset(word[:_READ_LETTERS] for word in (
    "save", "restore", "restart", "quit", "q", "undo", "script", "unscript", "transcript", "record", "replay",
))  # fmt: skip
"""Words that leave the game or access files, anywhere in a command."""


class ZMachineOptions(Options):
    """The game to play."""

    game_file: Path | None = None
    """A file for the Z-machine (.z3 to .z8) whose score jericho knows."""


class ZMachine(Environment[int]):
    """One game; a task is a seed of its random numbers."""

    name: ClassVar[str] = "textworld_zmachine"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Play a Z-machine game"
    instructions: ClassVar[str] = (
        "You play a text adventure. Each turn, give one command, such as: look, inventory, examine lamp, go north, "
        "take lamp, open mailbox."
    )
    max_turns: ClassVar[int] = 400
    max_action_chars: ClassVar[int] = 1024
    fork: ClassVar[ForkSupport] = ForkSupport.REPLAY
    licence: ClassVar[str] = "the game's own; jericho: GPL-2.0"
    options: ClassVar[ZMachineOptions] = ZMachineOptions()

    _interpreter: "Interpreter"

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:
        """Return seeds. Raises `TaskDataError`, ModuleNotFoundError."""
        if data is not None:
            raise TaskDataError(f"{data}: the option game_file names the game: there are no files to import")
        path = cls._file()
        if not Interpreter(path, 0).knows_score:
            raise TaskDataError(f"{path}: jericho does not know where this game keeps its score")
        return GeneratedTasks(cls.name, _seed, str, levels=(_LEVEL,), counts=_COUNTS)

    def reset(self, task: int, seed: int) -> str:
        """Begin the game with the task's seed."""
        del seed
        self._interpreter = Interpreter(self._file(), task)
        return self._interpreter.opening

    def step(self, action: str) -> Outcome:
        """Let the game answer."""
        game = self._interpreter
        before = game.score
        answer = game.act(action)
        if answer is None:
            return Outcome("That command cannot be used here.", score=game.score, action_valid=False)
        return Outcome(answer, reward=game.score - before, terminated=game.over, score=game.score)

    @classmethod
    def _file(cls) -> Path:
        path = cls.options.game_file
        if path is None:
            raise TaskDataError("the option game_file must name a game for the Z-machine, such as zork1.z5")
        if not path.is_file():
            raise TaskDataError(f"{path}: there is no such game file")
        if path.stat().st_size > _MAX_BYTES:
            raise TaskDataError(f"{path} has more than {_MAX_BYTES} bytes, which no game for the Z-machine has")
        return path


class Interpreter:
    """A running game. Each has its own copy of the interpreter's library, whose state is global."""

    def __init__(self, path: Path, seed: int) -> None:
        self._frotz = _frotz(path, seed)
        self.knows_score = bool(self._frotz.is_fully_supported)
        self.opening = _tidy(self._frotz.reset()[0])

    @property
    def score(self) -> float:
        """The share of the points, at least 0; 1 if, and only if, the game is won."""
        if self._frotz.victory():
            return 1.0
        most = self._frotz.get_max_score()
        return min(max(self._frotz.get_score() / most, 0.0), 0.99) if most > 0 else 0.0

    @property
    def over(self) -> bool:
        """Whether the game is won or lost."""
        return bool(self._frotz.victory() or self._frotz.game_over())

    def act(self, text: str) -> str | None:
        """Return the game's answer; for a text that is not a game command, do nothing and return None."""
        command = " ".join(text.split())
        printable = command.isascii() and command.isprintable()
        read = {word[:_READ_LETTERS] for word in re.findall(r"[a-z]+", command.lower())}
        if not printable or len(command) > _MAX_CHARS or _NOT_PLAY & read:
            return None
        return _tidy(self._frotz.step(command)[0])


def _frotz(path: Path, seed: int) -> Any:
    try:
        import jericho  # noqa: PLC0415 - a shared library, and for this environment alone
    except ModuleNotFoundError as error:
        if error.name != "jericho":
            raise
        raise ModuleNotFoundError(_MISSING, name="jericho") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jericho.jericho.UnsupportedGameWarning)
        return jericho.FrotzEnv(str(path), seed=seed)


def _seed(rng: random.Random, level: str) -> int:
    del level
    return rng.randrange(_MAX_SEED)


def _tidy(text: str) -> str:
    """Remove the prompt and the status line after it."""
    return re.sub(r"\n{3,}", "\n\n", text.rpartition("\n>")[0] or text).strip()
