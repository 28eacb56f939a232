"""Repeat calls that fail for a while: this module decides pauses, jitter, limits and the log line, over tenacity.

A loop specifies what it repeats, on which errors and until when. The SDK cannot import the kit and has `_retries.py`.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

log = structlog.get_logger()
T = TypeVar("T")
Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...]

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 2.0
_SPREAD: Final = 0.1
"""Random part added to a pause that the error asks for, which may become longer but never shorter."""


@dataclass(eq=False)
class Retries:
    """Repeat calls while they raise errors that may pass.

    Pauses double from `first_pause_s` to `longest_pause_s`; each is drawn at random between half the first and its
    full length, so that callers that failed together do not return together. All failures that one object sees
    before its next success are one outage: it is logged once, and its pauses keep growing from call to call.
    """

    event: str | None
    """The name of the line that is logged at the first failure; None if the call itself logs its failures."""
    _: KW_ONLY
    on: Errors
    """The errors that may pass."""
    unless: Errors = ()
    """The errors among them that do not pass."""
    first_pause_s: float = FIRST_PAUSE_S
    longest_pause_s: float = LONGEST_PAUSE_S
    asked_s: Callable[[Any], float | None] = lambda _: None
    """Returns the pause that an error asks for, such as `Retry-After`; None to choose it here."""
    level: Literal["info", "warning", "error"] = "warning"
    ended: str | None = None
    """The name of a line to log when a call succeeds again."""
    bound: Mapping[str, object] = field(default_factory=dict)
    """More fields of the lines."""
    _failures: int = field(default=0, init=False)
    _failing_since: float = field(default=0.0, init=False)

    async def call(
        self, once: Callable[[], Awaitable[T]], *, timeout_s: float = math.inf, attempts: int | None = None
    ) -> T:
        """Return the result of `once`, which must be safe to repeat.

        Raises its last error after `attempts` tries, or when `timeout_s` have passed since the beginning: the last
        pause is shortened so that one more try falls on that moment. A cancellation ends a pause at once.
        """
        deadline = time.monotonic() + timeout_s
        try:
            result = await once()
        except self.on as error:
            if isinstance(error, self.unless):
                raise
            failures = [error]
        else:
            self._note_success()
            return result

        async def again() -> T:
            if failures:
                raise failures.pop()
            return await once()

        # Tenacity adds 35 microseconds to a call, so it begins with the first failure, which counts as its first try.
        result = await AsyncRetrying(sleep=asyncio.sleep, **self._rules(deadline, attempts))(again)
        self._note_success()
        return result

    def call_blocking(self, once: Callable[[], T], *, timeout_s: float = math.inf, attempts: int | None = None) -> T:
        """Do the same as `call` for a function that blocks its thread; the pauses block it too."""
        deadline = time.monotonic() + timeout_s
        try:
            result = once()
        except self.on as error:
            if isinstance(error, self.unless):
                raise
            failures = [error]
        else:
            self._note_success()
            return result

        def again() -> T:
            if failures:
                raise failures.pop()
            return once()

        result = Retrying(sleep=time.sleep, **self._rules(deadline, attempts))(again)
        self._note_success()
        return result

    def _rules(self, deadline: float, attempts: int | None) -> dict[str, Any]:
        grown_s = min(self.first_pause_s * 2.0 ** min(self._failures, 32), self.longest_pause_s)
        growing = wait_random_exponential(multiplier=grown_s, max=self.longest_pause_s, min=self.first_pause_s / 2)
        enough = (lambda _: False) if attempts is None else stop_after_attempt(attempts)

        def pause_s(state: RetryCallState) -> float:
            """Return the pause before the next try; infinity if that would come too late."""
            left_s = deadline - time.monotonic()
            asked_s = self.asked_s(_error(state))
            if left_s <= 0 or (asked_s is not None and asked_s > left_s):
                return math.inf
            if asked_s is not None:
                return asked_s * (1 + random.uniform(0, _SPREAD))
            return min(growing(state), left_s)

        return {
            "retry": retry_if_exception_type(self.on) & retry_if_not_exception_type(self.unless),
            "wait": pause_s,
            "stop": lambda state: state.upcoming_sleep == math.inf or enough(state),
            "before_sleep": self._note_failure,
            "reraise": True,
        }

    def _note_failure(self, state: RetryCallState) -> None:
        if not self._failures:
            self._failing_since = time.monotonic()
            if self.event is not None:
                error = _error(state)
                reason, pause_s = str(error) or type(error).__name__, round(state.upcoming_sleep, 3)
                getattr(log, self.level)(self.event, **self.bound, reason=reason, pause_s=pause_s)
        self._failures += 1

    def _note_success(self) -> None:
        if self._failures and self.ended is not None:
            away_s = round(time.monotonic() - self._failing_since, 3)
            getattr(log, self.level)(self.ended, **self.bound, away_s=away_s)
        self._failures = 0


def _error(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()
