"""An environment that does what it is told, good or bad. Served by its path, as a researcher's own file is."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final

from gymfleet_contracts.session import ExpertMove, ForkSupport
from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import GeneratedTasks, TaskSource


def _hang(_: str) -> None:
    while True:
        time.sleep(1)


def _fail(_: str) -> None:
    raise ValueError("secret of the step")


def _burn(seconds: str) -> None:
    until = time.thread_time() + float(seconds)
    while time.thread_time() < until:
        pass


def _grow(mebibytes: str) -> None:
    _held.append(bytearray(os.urandom(1) * (int(mebibytes) << 20)))


def _exit(_: str) -> None:
    raise SystemExit(3)


_held: list[bytearray] = []
"""A leak, as an engine may have one."""
_DEEDS: Final[dict[str, Callable[[str], None]]] = {
    "hang": _hang,
    "sleep": lambda seconds: time.sleep(float(seconds)),
    "burn": _burn,
    "grow": _grow,
    "raise": _fail,
    "exit": _exit,
    "die": lambda _: os._exit(9),
}
_ANSWERS: Final = {
    "nan": Outcome("", reward=float("nan")),
    "big": Outcome("x" * 100_000),
    "unspeakable": Outcome("", info={"number": 2**64}),
    "surrogate": Outcome("bad \ud800 text"),
    "win": Outcome("won", reward=1.0, terminated=True, score=1.0),
}


class Troublesome(Environment[int]):
    """Counts steps; `hang`, `burn`, `grow`, `raise`, `exit`, `die`, `nan`, `big`, `win` and others do as they say."""

    name: ClassVar[str] = "troublesome"
    version: ClassVar[str] = "1"
    summary: ClassVar[str] = "Does what it is told"
    instructions: ClassVar[str] = "Say what to do."
    max_turns: ClassVar[int] = 1000
    max_action_chars: ClassVar[int] = 100
    fork: ClassVar[ForkSupport] = ForkSupport.REPLAY

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:
        del data
        return GeneratedTasks(
            cls.name,
            lambda rng, _: rng.randrange(10**9),
            str,
            levels=("only",),
            default_level="only",
            counts={"train": 1000, "validation": 10, "test": 10},
        )

    def reset(self, task: int, seed: int) -> str:
        if seed == 666:
            raise RuntimeError("secret of the reset")
        if seed == 999:
            os._exit(9)
        self._steps = 0
        self.turn_limit = 3 if seed == 3 else None
        return f"task {task}"

    def step(self, action: str) -> Outcome:
        self._steps += 1
        word, _, argument = action.partition(" ")
        if (deed := _DEEDS.get(word)) is not None:
            deed(argument)
        if word in _ANSWERS:
            return _ANSWERS[word]
        return Outcome(f"step {self._steps}: {action}", info={"pid": os.getpid()})

    def expert(self) -> ExpertMove:
        return ExpertMove(thought="I know.", action="win")


ENVIRONMENT = Troublesome
