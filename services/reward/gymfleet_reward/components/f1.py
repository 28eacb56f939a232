"""Words that the answer shares with the right one."""

from typing import Any

from gymfleet_contracts.comparing import words_f1

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of


class F1(AnswerComponent[AnswerOptions]):
    """The harmonic mean of precision and recall over words, as SQuAD 2.0 computes it, in [0, 1]."""

    Options = AnswerOptions
    version = "1"

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`. If either has no word left, they must be equal."""
        return words_f1(answer, text_of(right, self.options.ground_truth_from))
