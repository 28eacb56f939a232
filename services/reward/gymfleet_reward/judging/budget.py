"""Limits on asking a judge: a pause between requests, and the total that a process may spend."""

import asyncio
import time
from collections.abc import Callable

from gymfleet_reward.component import ComponentError
from gymfleet_reward.judging.settings import JudgeSettings


class BudgetSpent(ComponentError):
    """The judge is not asked any more: there is no reward, and none is made up."""


class Budget:
    """The budget of a process for a judge, and how much of it is spent."""

    def __init__(self, name: str, settings: JudgeSettings) -> None:
        self._name = name
        self._max_calls = settings.max_calls
        self._max_tokens = settings.max_tokens
        self._num_calls = 0
        self._num_tokens = 0

    def take_call(self) -> None:
        """Count a request that is about to be made. Raises `BudgetSpent` instead if nothing is left."""
        self.check()
        self._num_calls += 1

    def check(self) -> None:
        """Raise `BudgetSpent` if nothing is left. Requests that are already under way are still finished."""
        for spent, limit, what in (
            (self._num_calls, self._max_calls, "max_calls"),
            (self._num_tokens, self._max_tokens, "max_tokens"),
        ):
            if limit is not None and spent >= limit:
                raise BudgetSpent(
                    f"the budget of the judge {self._name} is spent: {spent} of {what} = {limit} are used"
                )

    def take_tokens(self, num_tokens: int) -> None:
        """Count tokens that were used."""
        self._num_tokens += num_tokens


class Pace:
    """Keeps a pause between requests. Those that wait go in the order of their arrival."""

    def __init__(self, requests_per_minute: float | None) -> None:
        self._pause_s = 0.0 if requests_per_minute is None else 60.0 / requests_per_minute
        self._next = 0.0
        self._queue = asyncio.Lock()

    async def wait(self, wanted: Callable[[], bool]) -> None:
        """Return when the next request may be made, or when this one is no longer wanted."""
        if not self._pause_s:
            return
        async with self._queue:
            if wanted():
                await asyncio.sleep(max(self._next - time.monotonic(), 0.0))
            if wanted():
                self._next = time.monotonic() + self._pause_s
