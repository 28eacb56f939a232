"""Time limits that are paused while new weights are loaded, because no episode can sample anything then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Deadlines:
    """The time limits that are running. Construct it anywhere, but use it on one event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._left_s: dict[asyncio.Timeout, float] | None = None
        """The seconds that each limit has left while all of them are paused; None while they run."""

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[asyncio.Timeout]:
        """Limit the time like `asyncio.timeout`, not counting the time between `pause` and `resume`."""
        async with asyncio.timeout(seconds if self._left_s is None else None) as timeout:
            if self._left_s is None:
                self._running.add(timeout)
            else:
                self._left_s[timeout] = seconds
            try:
                yield timeout
            finally:
                self._running.discard(timeout)
                if self._left_s is not None:
                    self._left_s.pop(timeout, None)

    def pause(self) -> None:
        """Stop the clock of every limit. Pausing again changes nothing."""
        if self._left_s is not None:
            return
        now = asyncio.get_running_loop().time()
        self._left_s = {}
        for timeout in self._running:
            if not timeout.expired() and (ends_at := timeout.when()) is not None:
                self._left_s[timeout] = ends_at - now
                timeout.reschedule(None)
        self._running.clear()

    def resume(self) -> None:
        """Let every limit continue with the time that it had left."""
        if self._left_s is None:
            return
        now = asyncio.get_running_loop().time()
        for timeout, left_s in self._left_s.items():
            timeout.reschedule(now + left_s)
            self._running.add(timeout)
        self._left_s = None
