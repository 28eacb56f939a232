"""Exact match and F1, as in SQuAD's and HotpotQA's evaluation scripts."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Final

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ALL_OR_NOTHING: Final = frozenset({"yes", "no", "noanswer"})


def normal(text: str) -> str:
    """Return a text in lower case without ASCII punctuation, articles and surplus blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> bool:
    """Return whether an answer is one of the right ones.

    `normal` leaves nothing of an answer such as the bands `The The` and `!!!`: it has to match letter by letter, or any
    empty answer would match.
    """
    return any(_alike(answer, gold) for gold in golds)


def f1(answer: str, golds: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall over words, for the gold answer where it is highest.

    As in HotpotQA, `yes` and `no` cannot be partly right.
    """
    return max((_f1(answer, gold) for gold in golds), default=0.0)


def _alike(answer: str, gold: str) -> bool:
    wanted = normal(gold)
    return normal(answer) == wanted if wanted else answer.strip().lower() == gold.strip().lower()


def _f1(answer: str, gold: str) -> float:
    if _alike(answer, gold):
        return 1.0
    given, wanted = normal(answer), normal(gold)
    if given in _ALL_OR_NOTHING or wanted in _ALL_OR_NOTHING:
        return 0.0
    words, gold_words = given.split(), wanted.split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return 2 * precision * recall / (precision + recall)
