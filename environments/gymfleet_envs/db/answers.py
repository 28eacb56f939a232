"""Final answers: read without evaluating them, cleaned and compared as DBBench does."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, Final

_TOLERANCE: Final = 1e-2
_NOTHING: Final = frozenset(("", "none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity"))
_ITEM: Final = re.compile(r"\s*(?:'((?:[^'\\]|\\.)*+)'|\"((?:[^\"\\]|\\.)*+)\"|([^,]*))\s*,?\s*", re.DOTALL)


def read_answer(text: str) -> list[str]:
    """Return the items of `["a", "b"]`, or the cells of `[["a", 1]]` or of `[('a', 1)]` as MySQL prints rows.

    Any other text is the only item.
    """
    text = text.strip()
    if text.startswith("([") and text.endswith("])"):  # answer(["a"])
        text = text[1:-1]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list):
        items = [cell for row in value for cell in (row if isinstance(row, list) else [row])]
        if not any(isinstance(item, list | dict) for item in items):
            return [_as_text(item) for item in items]
    if len(text) >= 2 and text[0] + text[-1] in ("[]", "()"):
        return _items(text[1:-1])
    return [text]


def same_answer(given: Sequence[str], gold: Sequence[str]) -> bool:
    """Compare answers: numbers in pairs within 0.01, in any order; texts as sets, to the letter."""
    mine, right = [_clean(item) for item in given], [_clean(item) for item in gold]
    if not (mine and right):
        return mine == right
    numbers, right_numbers = [_number(item) for item in mine], [_number(item) for item in right]
    if None in numbers or None in right_numbers:
        return set(mine) == set(right)
    return len(mine) == len(right) and _matched(numbers, right_numbers)


def _matched(given: list[Any], gold: list[Any]) -> bool:
    """Whether each number has its own partner; in sorted lists, the nearest partners are at the same places."""
    return all(abs(one - other) <= _TOLERANCE for one, other in zip(sorted(given), sorted(gold), strict=True))


def _clean(item: str) -> str:
    text = item.strip().strip("'\"").strip()
    text = text.removesuffix("%").strip() if text.endswith("%") else text.replace(",", "")
    return "0" if text.lower() in _NOTHING else text


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _as_text(value: Any) -> str:
    return "none" if value is None else str(value)


def _items(text: str) -> list[str]:
    """Split items at commas outside quotes; a row of one value becomes that value."""
    found: list[str] = []
    place = 0
    while place < len(text):
        start = place + (len(text[place:]) - len(text[place:].lstrip(" \t\n(")))
        match = _ITEM.match(text, start)
        if match is None or match.end() == place:
            break
        place = match.end()
        single, double, plain = match.groups()
        if plain is not None:
            if plain := plain.strip().strip("()").strip():
                found.append(plain)
            continue
        found.append(re.sub(r"\\(.)", r"\1", single if single is not None else double))
        rest = re.compile(r"[\s,)]*").match(text, place)  # the end of a row of one value
        place = rest.end() if rest else place
    return found
