"""Repeat a call while a rule says so: the loops and pauses of the SDK's retries.

`_patience` has the rule for a 429, `_calls` that of REST for a lost connection, `multiplex` that of the stream. They
decide by the service's request and by whether the call was sent. With tenacity, which the services use, only these
loops would go away, and users of the SDK would have to install one more package.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

T = TypeVar("T")

PauseRule: TypeAlias = Callable[[Exception], float | None]
"""Returns the pause after which a call that raised this error is made again; None if the error goes to the caller."""


async def repeated(once: Callable[[], Awaitable[T]], pause_s: PauseRule) -> T:
    """Return the result of the first `once` that succeeds. Raises an error for which the rule does not repeat."""
    while True:
        try:
            return await once()
        except Exception as error:
            pause = pause_s(error)
            if pause is None:
                raise
        await asyncio.sleep(pause)


def repeated_blocking(once: Callable[[], T], pause_s: PauseRule) -> T:
    """Do as `repeated`, blocking the thread."""
    while True:
        try:
            return once()
        except Exception as error:
            pause = pause_s(error)
            if pause is None:
                raise
        time.sleep(pause)


class GrowingPause:
    """Pauses that double from the first to the longest."""

    __slots__ = ("_longest_s", "_next_s")

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._next_s = first_s
        self._longest_s = longest_s

    def next_s(self) -> float:
        """Return the next pause."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return pause_s
