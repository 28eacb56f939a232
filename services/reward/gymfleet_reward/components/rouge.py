"""Words, pairs of words or a sequence of words that the answer shares with the right one."""

import re
from collections import Counter
from typing import Any, Final, Literal

from rapidfuzz.distance import LCSseq

from gymfleet_reward.answers import AnswerComponent, AnswerOptions, text_of
from gymfleet_reward.component import ComponentError

_WORD: Final = re.compile(r"[a-z0-9]+")
_MAX_WORDS: Final = 100_000
"""Limit on the words of an answer: the longest common sequence costs the product of both lengths."""


class RougeOptions(AnswerOptions):
    """The units that are compared."""

    measure: Literal["rouge1", "rouge2", "rougeL"] = "rougeL"
    """`rouge1` counts words, `rouge2` pairs of words, `rougeL` the longest sequence of words that occur in both in the
    same order."""


class Rouge(AnswerComponent[RougeOptions]):
    """ROUGE (Lin, 2004): the harmonic mean of precision and recall, in [0, 1], as in the package rouge-score.

    Words are runs of ASCII letters and digits, without regard to case, and are not stemmed. An answer of more than
    100,000 words is worth 0.
    """

    Options = RougeOptions
    version = "1"

    def compared(self, answer: str, right: Any) -> float:
        """See `AnswerComponent`."""
        place = self.options.ground_truth_from
        wanted, given = _words(text_of(right, place)), _words(answer)
        if not wanted or len(wanted) > _MAX_WORDS:
            raise ComponentError(f"{place} has {len(wanted)} words, it must have 1 to {_MAX_WORDS}")
        if len(given) > _MAX_WORDS:
            return 0.0
        if self.options.measure == "rougeL":
            return _harmonic(LCSseq.similarity(given, wanted), len(given), len(wanted))
        size = int(self.options.measure[-1])
        ours, theirs = _ngrams(given, size), _ngrams(wanted, size)
        return _harmonic((ours & theirs).total(), ours.total(), theirs.total())


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _ngrams(words: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def _harmonic(shared: int, num_given: int, num_wanted: int) -> float:
    return 2 * shared / (num_given + num_wanted) if shared else 0.0
