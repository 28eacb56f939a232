"""A reader of JSON from outside that accepts only what every reader would understand in the same way."""

import json
from collections import Counter
from typing import Any, Final, NoReturn

MAX_OBJECT_CHARS: Final = 65_536
"""Maximum length of an object that `read_object` takes, such as the arguments of a call."""
_MAX_DEPTH: Final = 16
_INTEGERS: Final = range(-(2**63), 2**64)
"""The integers that frames on the wire can hold."""
_SHOWN_CHARS: Final = 60


class Ambiguous(ValueError):
    """JSON that Python's reader accepts, and that others would refuse or read differently."""


def loads(text: str) -> Any:
    """Parse JSON. Raises ValueError, `Ambiguous` for NaN and for a duplicate key, RecursionError for deep nesting."""
    return json.loads(text, object_pairs_hook=_object, parse_constant=refuse)


def refuse(constant: str) -> NoReturn:
    """Raise `Ambiguous` for `NaN` and `Infinity`, which Python's reader accepts as numbers."""
    raise Ambiguous(f"{constant} is no number of JSON")


def read_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text from outside; None for any other text, however it is made.

    Also None for an object that has more than `MAX_OBJECT_CHARS`, is nested too deeply, names a key twice, or holds
    NaN, too large a number, or half a surrogate pair: JSON that readers understand in different ways is not accepted.
    """
    if len(text) > MAX_OBJECT_CHARS:
        return None
    try:
        found = loads(text)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # 1e999 is read as infinity
    except (ValueError, RecursionError):  # UnicodeEncodeError is a ValueError
        return None
    return found if isinstance(found, dict) and _is_bounded(found, _MAX_DEPTH) else None


def _is_bounded(value: Any, depth: int) -> bool:
    """Return whether a value is nested at most this deeply, and all its integers have at most 64 bits."""
    if not isinstance(value, dict | list):
        return not isinstance(value, int) or value in _INTEGERS
    inside = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_bounded(one, depth - 1) for one in inside)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise Ambiguous(f"an object has the key {repr(twice)[:_SHOWN_CHARS]} twice")
    return found
