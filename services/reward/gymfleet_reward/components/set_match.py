"""The right things, in any order."""

from typing import Any, ClassVar, Literal

from gymfleet_contracts.comparing import named, things

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of
from gymfleet_reward.component import ComponentError


class SetOptions(AnswerOptions):
    """How much of the set counts."""

    measure: Literal["exact", "f1"] = "exact"
    """`exact`: 1 for exactly the right set, else 0; `f1`: the harmonic mean of precision and recall."""
    separator: str = ","
    """Separator of the things in an answer that is not a JSON list."""


class SetMatch(AnswerComponent[SetOptions]):
    """Whether the answer names the right things, in any order and without regard to case and punctuation."""

    Options = SetOptions
    version = "3"
    alternatives: ClassVar[bool] = False

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`. `right` is a text or a number, or a list of these."""
        place = self.options.ground_truth_from
        wanted = {named(text_of(one, place)) for one in (right if isinstance(right, list) else [right])} - {""}
        if not wanted:
            raise ComponentError(f"{place} holds nothing that could be named")
        given = things(answer, self.options.separator)
        if self.options.measure == "exact":
            return float(given == wanted)
        return 2 * len(given & wanted) / (len(given) + len(wanted))
