"""The right answer, apart from case, articles and punctuation."""

from gymfleet_contracts.comparing import named

from gymfleet_envs.dataset.scorer import BadGold, OneOf, ScorerOptions


class ExactMatch(OneOf[ScorerOptions]):
    """1 for a right answer, as SQuAD compares: without regard to case, articles, punctuation and spaces.

    These rules leave nothing of a right answer such as HotpotQA's bands `The The` and `!!!`: the first then keeps its
    articles, and the second has to match as it is, or any empty answer would match.
    """

    def right_one(self, gold: str) -> str:
        """See `OneOf`."""
        if not gold.strip():
            raise BadGold("it is empty")
        return named(gold)

    def compared(self, answer: str, right: str) -> float:
        """See `OneOf`."""
        return float(named(answer) == right)
