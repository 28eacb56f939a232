"""The data of a task: functions with independent questions, or a dialogue in a world."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from gymfleet_envs.function_calling.checker import Kind


@dataclass(frozen=True, slots=True)
class Question:
    """A request that one reply answers."""

    text: str
    kind: Kind
    answers: str = "[]"
    """JSON: for each right call, its function and the values that each argument may have."""


@dataclass(frozen=True, slots=True)
class Questions:
    """Requests to the same functions, one after the other; the task is solved if all answers are right."""

    functions: str
    """JSON: the list of descriptions that the first observation shows."""
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class GoldStep:
    """Gold calls that can be made at once."""

    calls: tuple[str, ...]
    counts: bool = True
    """Whether the results count. If not, the calls only find out what later ones need."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a dialogue, with its gold steps; if there are none, there is nothing to do in the turn."""

    text: str
    """The text shown, with the functions that are given in this turn."""
    steps: tuple[GoldStep, ...]
    gives: tuple[str, ...] = ()
    """Functions that cannot be called before this turn."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Requests that change the state of a world."""

    functions: str
    """JSON: the list of descriptions that the first observation shows."""
    parameters: tuple[tuple[str, tuple[str, ...]], ...]
    """The names of each existing function's parameters, in order."""
    turns: tuple[Turn, ...]
    world: Literal["depot", "published"]
    config: str
    """JSON: the initial state of the world."""
    classes: tuple[str, ...] = ()
    """For a published world: the classes whose methods are the functions."""
    long_context: bool = False
    """For a published world: whether its state is padded with distracting content."""
    solvable: bool = True
    """Whether the gold calls can be written in the form that models have to use."""


FunctionCallingTask: TypeAlias = Questions | Dialogue
