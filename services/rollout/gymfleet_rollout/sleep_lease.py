"""A limit on how long the engines stay asleep: a trainer that dies meanwhile does not leave them so for ever."""

import asyncio
from collections.abc import Awaitable, Callable


class SleepLease:
    """A lease that has to be renewed, or `wake` is called. Use it on one event loop.

    `wake` runs in its own task: it must ask `is_over`, because the lease may be renewed before its turn comes.
    """

    def __init__(self, wake: Callable[[], Awaitable[None]]) -> None:
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self._waking: asyncio.Task[None] | None = None

    @property
    def is_held(self) -> bool:
        """Return whether the engines sleep: the lease was taken and not given back, whether it is over or not."""
        return self._timer is not None

    @property
    def is_over(self) -> bool:
        """Return whether the lease was not renewed in time."""
        return self._timer is not None and self._timer.when() <= asyncio.get_running_loop().time()

    def renew(self, seconds: float) -> None:
        """Take the lease, or renew it, to end `seconds` from now."""
        self.give_back()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end)

    def give_back(self) -> None:
        """End the lease without a call of `wake`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Give the lease back, and end a `wake` that is under way."""
        self.give_back()
        if self._waking is not None:
            self._waking.cancel()

    def _end(self) -> None:
        async def wake() -> None:
            await self._wake()

        self._waking = asyncio.get_running_loop().create_task(wake())
