"""The right answer, apart from case, articles and punctuation."""

from gymfleet_contracts.comparing import normalised

from gymfleet_envs.dataset.scorer import BadGold, OneOf, ScorerOptions


class ExactMatch(OneOf[ScorerOptions]):
    """1 for a right answer, as SQuAD compares: without regard to case, articles, punctuation and spaces.

    These rules leave nothing of a right answer such as HotpotQA's bands `The The` and `!!!`: it has to match letter by
    letter, or any empty answer would match.
    """

    def right_one(self, gold: str) -> tuple[str, str]:
        """See `OneOf`. Returns the words that are compared, and the whole text."""
        if not gold.strip():
            raise BadGold("it is empty")
        return normalised(gold), gold.strip().lower()

    def compared(self, answer: str, right: tuple[str, str]) -> float:
        """See `OneOf`."""
        words, whole = right
        return float(normalised(answer) == words if words else answer.strip().lower() == whole)
