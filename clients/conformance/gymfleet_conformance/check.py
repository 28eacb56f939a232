"""A check: one promise of a protocol, tested against a server.

A check is an async function that gets a target of its own. It returns if the
promise holds, and raises `Failed` or `NotApplicable` otherwise. Its docstring is
the promise, in one line.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from gymfleet_conformance.server_under_test import Target

DEADLINE_S: Final = 15.0
T = TypeVar("T", bound=Target)
Body = Callable[[T], Awaitable[None]]


class Protocol(StrEnum):
    """The protocol that a server speaks."""

    NATIVE = "native"
    OPENENV = "openenv"
    AGENTGYM = "agentgym"


class Severity(StrEnum):
    """Whether a server must keep a promise, or only should."""

    MUST = "must"
    SHOULD = "should"


class Need(StrEnum):
    """What an environment must declare about itself for a check to apply."""

    DETERMINISTIC = "deterministic"
    EXPERT = "expert"
    FORK = "fork"
    NO_FORK = "no fork"
    STATE_KEYS = "state keys"
    ACTIONS = "actions"
    NO_ACTIONS = "no actions"
    SEATS = "seats"
    NO_SEATS = "no seats"


@dataclass(frozen=True, slots=True)
class Check(Generic[T]):
    """One promise, and the function that tests it."""

    id: str
    """`group.name`. It is stable, because reports from different days are compared by it."""
    protocol: Protocol
    severity: Severity
    promise: str
    run: Body[T]
    needs: tuple[Need, ...] = ()
    deadline_s: float = DEADLINE_S

    @property
    def group(self) -> str:
        """The part of the id before the dot."""
        return self.id.partition(".")[0]


class Suite(Generic[T]):
    """The checks of one protocol, in the order in which they are written."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol: Final = protocol
        self.checks: list[Check[T]] = []

    def must(
        self, check_id: str, *, needs: tuple[Need, ...] = (), deadline_s: float = DEADLINE_S
    ) -> Callable[[Body[T]], Body[T]]:
        """Add a check without which a server does not conform."""
        return self._adding(check_id, Severity.MUST, needs, deadline_s)

    def should(
        self, check_id: str, *, needs: tuple[Need, ...] = (), deadline_s: float = DEADLINE_S
    ) -> Callable[[Body[T]], Body[T]]:
        """Add a check that is reported but does not decide whether a server conforms."""
        return self._adding(check_id, Severity.SHOULD, needs, deadline_s)

    def _adding(
        self, check_id: str, severity: Severity, needs: tuple[Need, ...], deadline_s: float
    ) -> Callable[[Body[T]], Body[T]]:
        def add(body: Body[T]) -> Body[T]:
            promise = (inspect.getdoc(body) or check_id).removesuffix(".")
            self.checks.append(Check(check_id, self.protocol, severity, promise, body, needs, deadline_s))
            return body

        return add
