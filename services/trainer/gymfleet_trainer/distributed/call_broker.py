"""The exchange of calls from the run and answers from the workers. It runs as a Ray actor.

A call is over when every rank has made it. Some calls, such as loading a checkpoint, do not synchronise the
ranks: without this rule a slow rank would find the next call in place of its own.

Workers come in groups: when one dies, Ray Train ends its group and starts another, which has no record of the
earlier calls. A caller that still waits for an answer of the old group then learns that it is lost.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymfleet_trainer.errors import WorkersFailed, WorkersLost


@dataclass(frozen=True, slots=True)
class Call:
    """A method of the learner to call on every worker."""

    number: int
    method: str
    arguments: Sequence[Any]
    """One reference to the arguments, in a list so that Ray passes the reference on as it is."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The value that the method returned, or the error that it raised, on the first rank."""

    value: Any = None
    error: Exception | None = None


class CallBroker:
    """Pass on one call at a time, to one group of workers at a time."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._group = 0
        self._ranks = 0
        self._missing = 0
        self._number = 0
        self._call: Call | None = None
        self._answer: Answer | None = None
        self._closed: str | None = None

    # --- for the workers

    async def join(self, ranks: int) -> int:
        """Register a new group of `ranks` workers and return its number, from 1. Its first rank calls this once."""
        async with self._changed:
            self._group += 1
            self._ranks = ranks
            self._call = self._answer = None
            self._changed.notify_all()
            return self._group

    async def take(self, group: int, number: int) -> Call | None:
        """Wait for the call `number` or a later one; return None when there are no more for this group."""
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._over(group) or (self._call is not None and self._call.number >= number)
            )
            return None if self._over(group) else self._call

    async def answer(self, number: int, answer: Answer | None) -> None:
        """Record that a rank has made the call `number`; the first rank passes the answer."""
        async with self._changed:
            if self._call is not None and number == self._call.number:
                self._missing -= 1
                self._answer = answer or self._answer
                self._changed.notify_all()

    # --- for the run

    async def group(self, after: int) -> int:
        """Wait for a group later than `after` and return its number, or 0 when there will be none."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed is not None or self._group > after)
            return 0 if self._closed is not None else self._group

    async def call(self, group: int, method: str, arguments: Sequence[Any]) -> Answer:
        """Let the group's workers call a method of the learner, and wait for the answer.

        The answer is `WorkersLost` when another group has replaced this one, `WorkersFailed` when none will.
        """
        async with self._changed:
            if not self._over(group):
                self._number += 1
                self._call, self._answer = Call(self._number, method, arguments), None
                self._missing = self._ranks
                self._changed.notify_all()
            await self._changed.wait_for(lambda: self._over(group) or self._made())
            if self._closed is not None:
                return Answer(error=WorkersFailed(self._closed))
            if group != self._group or self._answer is None:
                return Answer(error=WorkersLost(f"group {group} of the workers died, group {self._group} is there"))
            return self._answer

    async def close(self, reason: str) -> None:
        """Accept no more calls: the workers end, and callers that wait for them get the reason."""
        async with self._changed:
            self._closed = reason
            self._changed.notify_all()

    def _made(self) -> bool:
        """Return whether all ranks made the call, or the first one failed, since the others may then wait for ever."""
        return self._answer is not None and (self._missing == 0 or self._answer.error is not None)

    def _over(self, group: int) -> bool:
        return self._closed is not None or group != self._group
