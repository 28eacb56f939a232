"""How an agent went about a task, whatever the outcome; components reward it and measurements report it."""

from collections.abc import Sequence
from typing import NamedTuple

from gymfleet_contracts.trajectory import Turn


class Mistakes(NamedTuple):
    """Replies without an action, or with one that the environment did not understand."""

    made: int
    mended: int
    """Mistakes after which a reply was understood soon enough."""


def is_understood(turn: Turn) -> bool:
    """Return whether a reply has an action that the environment understood."""
    return turn.action is not None and turn.action_valid


def mistakes(turns: Sequence[Turn], *, within: int = 1) -> Mistakes:
    """Count the mistakes of an episode, and those that one of the next `within` replies mended."""
    understood = [is_understood(turn) for turn in turns]
    places = [place for place, good in enumerate(understood) if not good]
    return Mistakes(len(places), sum(any(understood[place + 1 : place + 1 + within]) for place in places))


def num_useful(turns: Sequence[Turn]) -> int:
    """Count the replies whose action was understood and not taken in vain.

    An action is in vain if the same one was already taken on the same observation: it can reveal nothing new.
    """
    taken = {(turn.observation, turn.action) for turn in turns if is_understood(turn)}
    return len(taken)
