"""Compare an answer with the gold one, as AgentGym's servers do: Python's equality, without any tolerance."""

from typing import Any


def same(gold: Any, given: Any) -> bool:
    """Return whether two answers are equal. The order of a list does not count; a number never equals its text."""
    if isinstance(gold, list) and isinstance(given, list):
        return len(gold) == len(given) and all(map(_equal, in_order(gold), in_order(given)))
    return _equal(gold, given)


def in_order(items: list[Any]) -> list[Any]:
    """Return the items as `finish` sorts them, or unchanged if they cannot be compared."""
    try:
        return sorted(items)
    except TypeError:
        return items


def _equal(gold: Any, given: Any) -> bool:
    if isinstance(gold, bool) or isinstance(given, bool):
        return gold is given
    return bool(gold == given)
