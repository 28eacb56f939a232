"""The scorers of rows, by their data sources."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from gymfleet_envs.dataset.parts import UnknownPart, names_in
from gymfleet_envs.dataset.scorer import PACKAGE, AnyScorer, make_scorer
from gymfleet_envs.tasks import TaskDataError

_KNOWN: Final[dict[str, str | dict[str, JsonValue]]] = {
    "arithmetic": "numeric_match",
    "countdown": "countdown",
    "openai/gsm8k": {"use": "numeric_match", "answer": "hash"},
    "math_dapo": {"use": "numeric_match", "answer": "line"},
    **{
        name: {"use": "math_match", "answer": "boxed"}
        for name in ("DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "lighteval/MATH")
    },
    **{
        f"searchR1_{name}": {"use": "exact_match", "answer": "tag"}
        for name in ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
    },
}
"""Data sources that verl and TinyZero score, as far as one of gymfleet's scorers has their rule."""


class Scorers:
    """The scorers of the data sources: those known by their published names, and the operator's own."""

    def __init__(self, told: Mapping[str, str | Mapping[str, JsonValue]]) -> None:
        self._told = {**_KNOWN, **told}
        self._made: dict[str, AnyScorer] = {}
        self._named: dict[str, AnyScorer] = {}
        for name in told:  # also those of no row: a misspelt scorer is told at the start
            self._make(name)

    def of(self, data_source: str, place: str) -> AnyScorer:
        """Return the scorer of a data source. Raises `TaskDataError` if it has none."""
        if data_source in self._made:
            return self._made[data_source]
        if data_source not in self._told:
            what = f"data_source {data_source[:80]!r} has no scorer" if data_source else "there is no data_source"
            known = ", ".join(self._told)
            raise TaskDataError(f"{place}: {what}; known: {known}; name others in the option scorers")
        return self._make(data_source)

    def named(self, name: str, place: str) -> AnyScorer:
        """Return the scorer that a row itself names: one of gymfleet's, as a data file must not import code.

        Raises `TaskDataError`.
        """
        if name not in (known := names_in(PACKAGE)):
            raise TaskDataError(f"{place}: unknown scorer {name[:80]!r}; a row may name {', '.join(known)}")
        if name not in self._named:
            self._named[name] = make_scorer(name)
        return self._named[name]

    def _make(self, data_source: str) -> AnyScorer:
        try:
            self._made[data_source] = make_scorer(self._told[data_source])
        except UnknownPart as error:
            raise TaskDataError(f"scorers.{data_source}: {error}") from None
        return self._made[data_source]
