"""Words that the answer shares with a right one."""

from gymfleet_contracts.comparing import normalised, words_f1

from gymfleet_envs.dataset.scorer import BadGold, OneOf, ScorerOptions


class F1(OneOf[ScorerOptions]):
    """The harmonic mean of precision and recall over words, as SQuAD 2.0 computes it, in [0, 1]."""

    def right_one(self, gold: str) -> str:
        """See `OneOf`."""
        if not normalised(gold):
            raise BadGold("no word of it is compared: articles and punctuation are not")
        return gold

    def compared(self, answer: str, right: str) -> float:
        """See `OneOf`."""
        return words_f1(answer, right)
