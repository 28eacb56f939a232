"""The right answer, regardless of case, articles and punctuation."""

from typing import Any

from gymfleet_contracts.comparing import normalised

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of


class ExactMatch(AnswerComponent[AnswerOptions]):
    """1 for the right answer, as SQuAD compares: without regard to case, articles, punctuation and spaces."""

    Options = AnswerOptions
    version = "1"

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`."""
        return float(normalised(answer) == normalised(text_of(right, self.options.ground_truth_from)))
