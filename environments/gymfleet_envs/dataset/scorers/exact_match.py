"""The right answer, apart from case, articles and punctuation."""

from gymfleet_contracts.comparing import normalised

from gymfleet_envs.dataset.scorer import BadGold, OneOf, ScorerOptions


class ExactMatch(OneOf[ScorerOptions]):
    """1 for a right answer, as SQuAD compares: without regard to case, articles, punctuation and spaces."""

    def right_one(self, gold: str) -> str:
        """See `OneOf`."""
        if not (words := normalised(gold)):
            raise BadGold("no word of it is compared: articles and punctuation are not")
        return words

    def compared(self, answer: str, right: str) -> float:
        """See `OneOf`."""
        return float(normalised(answer) == right)
