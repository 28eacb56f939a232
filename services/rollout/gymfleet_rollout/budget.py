"""The part of a group's budget that its episodes have used."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from gymfleet_contracts.rollout import Budget

T = TypeVar("T")
Timeout: TypeAlias = Callable[[float], contextlib.AbstractAsyncContextManager[asyncio.Timeout]]
"""Returns a time limit of the given number of seconds."""


class BudgetSpent(Exception):
    """The call would exceed the group's budget. Episodes can be exported as far as they were played."""


class NoRoom(BudgetSpent):
    """The context has no room for a hint at this node and a reply to it. Elsewhere the search can go on."""


class Spending:
    """Counts what all episodes of one group use, and refuses what would exceed the budget.

    Tokens are reserved before a reply, as if nothing of its prompt were cached, and counted after it. If the rest may
    not be enough for another whole reply, that reply waits for those under way, so that only the last one is cut. Only
    new weights can make a reply exceed the budget: its prompt is then computed again.
    """

    def __init__(self, budget: Budget, timeout: Timeout) -> None:
        self._budget = budget
        self._timeout = timeout
        self._began: float | None = None
        self._reserved = 0
        self._returned = asyncio.Event()
        self.is_timed = budget.seconds is not None
        self.env_steps = 0
        self.model_calls = 0
        self.tokens = 0
        self.evaluations = 0

    def begin(self) -> None:
        """Start the clock, unless it runs: the group has waited for room until now."""
        if self._began is None:
            self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the time since the group was begun."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def step(self) -> None:
        """Count an action. Raises `BudgetSpent`."""
        self._require("env_steps", self.env_steps + 1)
        self.env_steps += 1

    def evaluate(self, count: int) -> None:
        """Count nodes whose value is requested. Raises `BudgetSpent`."""
        self._require("evaluations", self.evaluations + count)
        self.evaluations += count

    async def reserve(self, count: int, num_before: int, max_tokens: int) -> int:
        """Count replies and reserve tokens until `settle`; return how many each may have. Raises `BudgetSpent`.

        Args:
            count: the number of replies to one prompt.
            num_before: the tokens of that prompt, with all that is before it.
            max_tokens: the most that one reply may have.
        """
        self._require("model_calls", self.model_calls + count)
        if (limit := self._budget.tokens) is not None:
            while self._reserved and limit - self.tokens - self._reserved < count * (num_before + max_tokens):
                self._returned.clear()
                await self._returned.wait()
            self._require("model_calls", self.model_calls + count)  # others may have called meanwhile
            left = limit - self.tokens - self._reserved
            if (most := left // count - num_before) < 1:
                raise BudgetSpent(
                    f"tokens: {self.tokens} of {limit} are spent, and the next prompt has up to {num_before}"
                )
            max_tokens = min(max_tokens, most)
        self.model_calls += count
        self._reserved += count * (num_before + max_tokens)
        return max_tokens

    def settle(self, reserved: int, used: int) -> None:
        """End a reservation, and count the tokens that were sampled, and those of prompts that were computed."""
        self._reserved -= reserved
        self.tokens += used
        self._returned.set()

    async def timed(self, call: Coroutine[Any, Any, T]) -> T:
        """Return a call's result within the time that is left. Raises `BudgetSpent`."""
        seconds = self._budget.seconds or 0.0
        spent = BudgetSpent(f"seconds: all {seconds:g} are spent")
        left_s = seconds - self.seconds
        if left_s <= 0:
            call.close()
            raise spent
        deadline: asyncio.Timeout | None = None
        try:
            async with self._timeout(left_s) as deadline:
                return await call
        except TimeoutError:
            if deadline is None or not deadline.expired():
                raise
            raise spent from None

    def _require(self, name: str, wanted: int) -> None:
        limit: int | None = getattr(self._budget, name)
        if limit is not None and wanted > limit:
            raise BudgetSpent(f"{name}: {wanted} would exceed {limit}")
