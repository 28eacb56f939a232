"""What one customer wants: the words for it, and the calls that fulfil it."""

from collections.abc import Sequence
from dataclasses import dataclass

from gymfleet_envs.tau.task import Call


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that a customer wants."""

    sentences: tuple[str, ...]
    """In the second person."""
    reads: tuple[Call, ...] = ()
    """What has to be looked up."""
    changes: tuple[Call, ...] = ()
    outputs: tuple[str, ...] = ()
    refusal: str = ""
    """What a clerk says of it, where the policy forbids it; it has no changes then."""


def gold(first: Sequence[Call], wishes: Sequence[Wish]) -> tuple[Call, ...]:
    """Return the calls of all wishes: first what identifies the customer, then each thing once, in order."""
    calls = [*first, *(call for wish in wishes for call in wish.reads)]
    return (*dict.fromkeys(calls), *(call for wish in wishes for call in wish.changes))


def told(about: Sequence[str], wishes: Sequence[Wish]) -> str:
    """Return the instruction."""
    return " ".join((*about, *(sentence for wish in wishes for sentence in wish.sentences)))
