"""Which texts MySQL's default collation takes for equal: neither case nor accents tell them apart."""

import unicodedata
from functools import lru_cache
from typing import Final

COLLATION: Final = "mysql"
"""What SQLite knows it by."""


def fold(text: str) -> str:
    """The text whose characters' order decides."""
    if text.isascii():
        return text.lower()
    return "".join(map(_base, text)).casefold()


def fold_each(text: str) -> str:
    """The same for LIKE, which compares character by character: their number stays."""
    if text.isascii():
        return text.lower()
    return "".join(lowered if len(lowered := _base(one).lower()) == 1 else one for one in text)


def compare(one: str, other: str) -> int:
    """Of a collation: negative, 0 or positive."""
    first, second = fold(one), fold(other)
    return (first > second) - (first < second)


@lru_cache(4096)
def _base(character: str) -> str:
    """A letter without its accents; nothing of an accent that stands alone."""
    parts = unicodedata.normalize("NFD", character)
    return "".join(part for part in parts if not unicodedata.combining(part)) or character
