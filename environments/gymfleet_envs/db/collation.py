"""MySQL's default collation, which treats texts as equal if they differ only in case or accents."""

import unicodedata
from functools import lru_cache
from typing import Final

COLLATION: Final = "mysql"
"""The collation's name in SQLite."""


def fold(text: str) -> str:
    """Return the form of a text that decides its order."""
    if text.isascii():
        return text.lower()
    return "".join(map(_base, text)).casefold()


def fold_each(text: str) -> str:
    """Fold a text for LIKE, which compares character by character: the number of characters stays."""
    if text.isascii():
        return text.lower()
    return "".join(lowered if len(lowered := _base(one).lower()) == 1 else one for one in text)


def compare(one: str, other: str) -> int:
    """Compare two texts for a collation: negative, 0 or positive."""
    first, second = fold(one), fold(other)
    return (first > second) - (first < second)


@lru_cache(4096)
def _base(character: str) -> str:
    """Return a letter without its accents; a combining accent on its own stays as it is."""
    parts = unicodedata.normalize("NFD", character)
    return "".join(part for part in parts if not unicodedata.combining(part)) or character
