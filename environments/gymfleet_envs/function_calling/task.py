"""What a task holds: functions with questions that stand for themselves, or a dialogue in a world."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gymfleet_envs.function_calling.checker import Kind


@dataclass(frozen=True, slots=True)
class Question:
    """A request that one reply answers."""

    text: str
    kind: Kind
    answers: str = "[]"
    """JSON: for each call that is right, its function and the values that each argument may have."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Requests to the same functions, one after the other; the task is solved if all are answered rightly."""

    functions: str
    """JSON: the list of descriptions that the first observation shows."""
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class GoldStep:
    """Gold calls that can be made at once."""

    calls: tuple[str, ...]
    counts: bool = True
    """Whether the results are asked for. If not, the calls only find out what later ones need."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a dialogue, with what makes it right; without gold steps there is nothing to be done in it."""

    text: str
    """As it is shown, with the functions that are given now."""
    steps: tuple[GoldStep, ...]
    gives: tuple[str, ...] = ()
    """Functions that cannot be called before this turn."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Requests that change the state of a world."""

    functions: str
    """JSON: the list of descriptions that the first observation shows."""
    parameters: tuple[tuple[str, tuple[str, ...]], ...]
    """The names of the parameters of each function that there is, in order."""
    turns: tuple[Turn, ...]
    world: Literal["depot", "published"]
    config: str
    """JSON: what the world begins with."""
    classes: tuple[str, ...] = ()
    """Of a published world: the classes whose methods are the functions."""
    long_context: bool = False
    """Of a published world: whether its state is filled up with what distracts."""
    solvable: bool = True
    """Whether the gold calls can be written in the form that models are to use."""


FunctionCallingTask: TypeAlias = Questions | Dialogue
