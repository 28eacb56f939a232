"""How an agent went about a task, whatever came of it: what components reward and measurements report."""

from collections.abc import Sequence
from typing import NamedTuple

from gymfleet_contracts.trajectory import Turn


class Mistakes(NamedTuple):
    """Replies that asked for no action, or for one that the environment did not understand."""

    made: int
    mended: int
    """Those after which a reply was understood soon enough."""


def is_understood(turn: Turn) -> bool:
    """Return whether a reply asked for an action that the environment understood."""
    return turn.action is not None and turn.action_valid


def mistakes(turns: Sequence[Turn], *, within: int = 1) -> Mistakes:
    """Count the mistakes of an episode, and those that one of the next `within` replies mended."""
    understood = [is_understood(turn) for turn in turns]
    places = [place for place, good in enumerate(understood) if not good]
    return Mistakes(len(places), sum(any(understood[place + 1 : place + 1 + within]) for place in places))


def num_useful(turns: Sequence[Turn]) -> int:
    """Count the replies whose action was understood and was not taken in vain before.

    An action is in vain where the same one was already taken upon the same observation: it can tell nothing new.
    """
    taken = {(turn.observation, turn.action) for turn in turns if is_understood(turn)}
    return len(taken)
