"""Texts as question answering compares them (Rajpurkar et al., 2016, SQuAD, arXiv:1606.05250)."""

import re
import string
from typing import Final

_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return a text in lower case without ASCII punctuation, English articles and surplus spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())
