"""The right answer, regardless of case, articles and punctuation."""

from typing import Any

from gymfleet_contracts.comparing import named

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of


class ExactMatch(AnswerComponent[AnswerOptions]):
    """1 for the right answer, as SQuAD compares: without regard to case, articles, punctuation and spaces.

    These rules leave nothing of a right answer such as `+` or `A`: `A` then keeps its article, and `+` has to match as
    it is, or any answer of which nothing is left would match.
    """

    Options = AnswerOptions
    version = "3"

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`."""
        return float(named(answer) == named(text_of(right, self.options.ground_truth_from)))
