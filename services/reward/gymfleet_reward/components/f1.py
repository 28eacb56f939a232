"""Words that the answer shares with the right one."""

from collections import Counter
from typing import Any

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of
from gymfleet_reward.words import normalised


class F1(AnswerComponent[AnswerOptions]):
    """The harmonic mean of precision and recall over words, as SQuAD 2.0 computes it, in [0, 1]."""

    Options = AnswerOptions
    version = "1"

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`. Where one of both has no word left, they must be equal."""
        given = normalised(answer).split()
        wanted = normalised(text_of(right, self.options.ground_truth_from)).split()
        if not given or not wanted:
            return float(given == wanted)
        shared = sum((Counter(given) & Counter(wanted)).values())
        return 2 * shared / (len(given) + len(wanted))
