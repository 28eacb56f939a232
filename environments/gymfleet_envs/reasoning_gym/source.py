"""The package's data sets: which can be played, how each is made, and the question at an index."""

import json
import random
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final

from gymfleet_envs.own_random import own_random
from gymfleet_envs.reasoning_gym.options import ALL, ReasoningGymOptions
from gymfleet_envs.tasks import GeneratedTasks, TaskDataError

_OTHERWISE_IN_EVERY_PROCESS: Final = "its questions or golds hang on the order of Python's sets: other in every process"
REFUSED: Final[Mapping[str, str]] = {
    "codeio": _OTHERWISE_IN_EVERY_PROCESS,
    "composite": "it mixes others: name those",
    "isomorphic_strings": _OTHERWISE_IN_EVERY_PROCESS,
    "knight_swap": _OTHERWISE_IN_EVERY_PROCESS,
    "polynomial_multiplication": _OTHERWISE_IN_EVERY_PROCESS,
    "propositional_logic": "its scorer takes any premise, copied from the question, for the conclusion",
    "ransom_note": _OTHERWISE_IN_EVERY_PROCESS,
    "word_ladder": _OTHERWISE_IN_EVERY_PROCESS,
}
"""Data sets that are not played, each with the reason."""
_SIZES: Final = {"acre": 500, "gsm_symbolic": 100_000, "list_functions": 100_000}
"""Number of questions of the data sets that draw all of them when made; the other data sets have 2^31 - 1."""
_MAX_SIZE: Final = 2**31 - 1
_PLOTTING: Final = (
    "matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections", "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)  # fmt: skip
_TRIES: Final = 100
_UNSOLVED: Final = "Integral("


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a data set. Questions are equal if data set and index are; nobody changes the entry."""

    dataset: str
    index: int
    entry: Mapping[str, Any] = field(compare=False)
    scorer: Any = field(compare=False)
    """The package's data set, which scores answers."""

    @property
    def prompt(self) -> str:
        """The text of the question for the agent."""
        return str(self.entry["question"])

    @property
    def solution(self) -> str:
        """A right answer; empty if the package names none."""
        told = self.entry["metadata"]
        match self.dataset:
            case "graph_color":
                return json.dumps({str(vertex): colour for vertex, colour in told["possible_answer"].items()})
            case "rubiks_cube":
                return str(told["example_correct_answer"])
        return str(self.entry["answer"] or "").strip()


def question_tasks(options: ReasoningGymOptions) -> GeneratedTasks[Question]:
    """Return the questions of the options' data sets, each a level. Raises `TaskDataError`, ImportError."""
    names = _names(options)
    made = {name: _made(name, json.dumps(options.config.get(name, {})), options.seed) for name in names}
    return GeneratedTasks(
        "reasoning_gym",
        lambda rng, level: _drawn(rng, level, made[level]),
        lambda question: f"{question.dataset}\n{question.prompt}",
        levels=names,
    )


def playable() -> tuple[str, ...]:
    """Return the names of all data sets that are played, in the package's order."""
    return tuple(name for name in _registered() if name not in REFUSED)


def _names(options: ReasoningGymOptions) -> tuple[str, ...]:
    known = playable()
    names = known if options.datasets == (ALL,) else options.datasets
    for name in (*names, *options.config):
        if name in REFUSED:
            raise TaskDataError(f"{name} is not played: {REFUSED[name]}")
        if name not in known:
            raise TaskDataError(f"there is no data set {name[:80]!r}; known: {ALL}, {', '.join(known)}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise TaskDataError(f"datasets names {twice[0]} twice")
    if unused := [name for name in options.config if name not in names]:
        raise TaskDataError(f"config has {unused[0]}, which datasets does not name")
    return names


def _registered() -> Mapping[str, tuple[Any, Any]]:
    # cellpylib imports these modules for drawing, which takes longer than all else, and nobody draws.
    absent = [name for name in _PLOTTING if name not in sys.modules]
    for name in absent:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name])["Axes3D"] = None
    try:
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415 - sympy: heavy, and for this environment alone
    finally:
        for name in absent:
            del sys.modules[name]
    return DATASETS  # type: ignore[no-any-return]


@cache
def _made(name: str, config: str, seed: int) -> Any:
    """Return the package's data set, made once for all tasks of a process. Raises `TaskDataError`."""
    kind, settings = _registered()[name]
    told = json.loads(config)
    known = sorted({one.name for one in fields(settings)} - {"seed", "size"})
    if unknown := sorted(told.keys() - set(known)):
        raise TaskDataError(f"config.{name}: there is no {unknown[0]!r}; it knows {', '.join(known)}")
    try:
        with own_random(f"{name}/{seed}"):
            return kind(config=settings(**told, seed=seed, size=_SIZES.get(name, _MAX_SIZE)))
    except (AssertionError, TypeError, ValueError) as error:
        raise TaskDataError(f"config.{name}: {error}") from None


def _drawn(rng: random.Random, name: str, dataset: Any) -> Question:
    """Draw a question that has an answer: some answers are the empty text, and some integrals sympy did not solve."""
    for _ in range(_TRIES):
        index = rng.randrange(_SIZES.get(name, _MAX_SIZE))
        with own_random(f"{name}/{dataset.seed}/{index}"):
            entry = dataset[index]
        if entry["answer"] is None or (entry["answer"].strip() and _UNSOLVED not in entry["answer"]):
            return Question(name, index, entry, dataset)
    raise TaskDataError(f"{name}: {_TRIES} questions in a row have no answer")
