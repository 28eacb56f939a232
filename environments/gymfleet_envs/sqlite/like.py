"""LIKE in time that grows no faster than the text, whatever the pattern is."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_PATTERN_CHARS: Final = 1000
_MAX_WORK: Final = 2**25
"""Limit on the characters of the text times those of a part with `_`: about a tenth of a second."""


@dataclass(frozen=True, slots=True)
class LikeRules:
    """A database's rules for LIKE.

    Args:
        fold: makes characters that count as equal the same, and keeps their number.
        escape: the character that escapes the next one, if the statement names none.
    """

    fold: Callable[[str], str]
    escape: str = ""


class UnfitPattern(Exception):
    """The pattern is invalid, or would take too long; the message says why."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The part between two `%`: a text, or with `_` in it an expression of the same length."""

    size: int
    text: str
    expression: re.Pattern[str] | None

    def at(self, text: str, place: int) -> bool:
        if self.expression is None:
            return text.startswith(self.text, place)
        return self.expression.match(text, place) is not None

    def end(self, text: str, place: int) -> int:
        """Return where the part's first occurrence from `place` on ends; -1 if there is none."""
        if self.expression is None:
            found = text.find(self.text, place)
            return found + self.size if found >= 0 else -1
        if len(text) * self.size > _MAX_WORK:
            raise UnfitPattern("LIKE or GLOB pattern too complex")
        match = self.expression.search(text, place)
        return match.end() if match else -1


def like(pattern: str, text: str, escape: str, fold: Callable[[str], str]) -> bool:
    """Return whether the text matches the pattern: `%` is any text, `_` one character.

    Args:
        pattern: a pattern of at most `MAX_PATTERN_CHARS` characters.
        text: the text to compare with it.
        escape: the character that escapes the next one; empty if there is none.
        fold: makes characters that count as equal the same, and keeps their number.

    Raises `UnfitPattern`.
    """
    parts = _parts(pattern, escape, fold)
    if not parts:
        return False
    folded = fold(text)
    first, last = parts[0], parts[-1]
    if not first.at(folded, 0):
        return False
    if len(parts) == 1:
        return len(folded) == first.size
    place, end = first.size, len(folded) - last.size
    for part in parts[1:-1]:
        place = part.end(folded, place)
        if place < 0:
            return False
    return place <= end and last.at(folded, end)


def ascii_fold(text: str) -> str:
    """Fold case as SQLite itself does: only that of the letters A to Z."""
    return text.lower() if text.isascii() else text.translate(_LOWER)


_LOWER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}
SQLITE_RULES: Final = LikeRules(ascii_fold)


@lru_cache(1024)
def _parts(pattern: str, escape: str, fold: Callable[[str], str]) -> tuple[_Part, ...]:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise UnfitPattern("LIKE or GLOB pattern too complex")
    parts: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            if (escaped := next(characters, None)) is None:
                return ()  # SQLite finds no text that is like it
            parts[-1].append(escaped)
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None if character == "_" else character)
    return tuple(_part(part, fold) for part in parts)


def _part(characters: list[str | None], fold: Callable[[str], str]) -> _Part:
    folded = [None if character is None else fold(character) for character in characters]
    text = "".join(character or "" for character in folded)
    if None not in folded:
        return _Part(len(folded), text, None)
    source = "".join("." if character is None else re.escape(character) for character in folded)
    return _Part(len(folded), text, re.compile(source, re.DOTALL))
