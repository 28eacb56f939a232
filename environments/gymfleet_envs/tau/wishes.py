"""The wishes of one customer: the words for them, and the calls that fulfil them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gymfleet_envs.tau.task import Call


@dataclass(frozen=True, slots=True)
class Wish:
    """One thing that a customer wants."""

    sentences: tuple[str, ...]
    """The words for it, in the second person."""
    reads: tuple[Call, ...] = ()
    """The calls that look up what is needed."""
    changes: tuple[Call, ...] = ()
    outputs: tuple[str, ...] = ()
    refusal: str = ""
    """A clerk's answer, if the policy forbids the wish, which then has no changes."""


def gold(first: Sequence[Call], wishes: Sequence[Wish]) -> tuple[Call, ...]:
    """Return the calls of all wishes: first those that identify the customer, then each read once, then the changes."""
    calls = [*first, *(call for wish in wishes for call in wish.reads)]
    return (*dict.fromkeys(calls), *(call for wish in wishes for call in wish.changes))


def told(about: Sequence[str], wishes: Sequence[Wish]) -> str:
    """Return the instruction."""
    return " ".join((*about, *(sentence for wish in wishes for sentence in wish.sentences)))
