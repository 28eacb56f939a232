"""The right things, in any order."""

from typing import Literal

from gymfleet_contracts.comparing import named, things
from pydantic import JsonValue

from gymfleet_envs.dataset.scorer import BadGold, Scorer, ScorerOptions, text_of


class SetOptions(ScorerOptions):
    """How to split an answer into things, and how to measure them."""

    measure: Literal["exact", "f1"] = "exact"
    """`exact`: 1 for the very set, else 0; `f1`: the harmonic mean of precision and recall."""
    separator: str = ","
    """The separator between the things of an answer that is not a JSON list."""


class SetMatch(Scorer[SetOptions]):
    """Whether the answer names the right things, without regard to order, case and punctuation."""

    Options = SetOptions

    def checked(self, gold: JsonValue) -> frozenset[str]:
        """See `Scorer`. The right things are a list, or a text in the form of an answer."""
        if not isinstance(gold, list):
            found = things(text_of(gold), self.options.separator)
        else:
            found = {named(text_of(one)) for one in gold} - {""}
        if not found:
            raise BadGold("it holds nothing that could be named")
        return frozenset(found)

    def score(self, answer: str, right: frozenset[str]) -> float:
        """See `Scorer`."""
        given = things(answer, self.options.separator)
        if self.options.measure == "exact":
            return float(given == right)
        return 2 * len(given & right) / (len(given) + len(right))
