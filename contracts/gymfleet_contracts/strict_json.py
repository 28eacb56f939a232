"""JSON from outside, read in the one way in which every reader would understand it."""

import json
from collections import Counter
from typing import Any, Final, NoReturn


class Ambiguous(ValueError):
    """Python's reader takes it, and others would not, or would read it otherwise."""


def loads(text: str) -> Any:
    """Parse JSON. Raises ValueError, `Ambiguous` for NaN and for a key that stands twice, RecursionError for depth."""
    return json.loads(text, object_pairs_hook=_object, parse_constant=refuse)


def refuse(constant: str) -> NoReturn:
    """Raise `Ambiguous` for `NaN` and `Infinity`, which Python's reader takes for numbers."""
    raise Ambiguous(f"{constant} is no number of JSON")


_SHOWN_CHARS: Final = 60


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise Ambiguous(f"an object has the key {repr(twice)[:_SHOWN_CHARS]} twice")
    return found
