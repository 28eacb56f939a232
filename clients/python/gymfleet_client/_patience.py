"""How long to wait for a slot, and whether to make a call again that a service turned away."""

import random
import time
from typing import Final

from gymfleet_contracts.session import OpenSession

from gymfleet_client.errors import ProblemError

_TOO_MANY: Final = 429
_OPENING_PART: Final = 0.2
"""Of an open's time that is not for waiting: who gives up first never learns of the session that is then his."""
_LONGEST_WAIT_S: Final = 3600.0
_SPREAD: Final = 0.1
"""Many who were turned away at once do not all come back at once."""


class Patience:
    """One call's time, its repeats after a 429 included.

    Args:
        timeout_s: for all of it.
        opening: an open, which the gateway may hold in its queue; the caller's own `wait_s`, where it gave one.
    """

    def __init__(self, timeout_s: float, opening: OpenSession | None = None) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s
        self._wait_until = None if opening is None else self._deadline - _OPENING_PART * timeout_s
        if opening is not None and opening.wait_s is not None:
            self._wait_until = min(self._began + opening.wait_s, self._deadline)

    @property
    def remaining_s(self) -> float:
        """What is left, never quite nothing."""
        return max(self._deadline - time.monotonic(), 0.001)

    def told(self, request: OpenSession) -> OpenSession:
        """The request of the next try, with the time that the gateway may let it wait for a slot."""
        if self._wait_until is None:
            return request
        wait_s = min(max(self._wait_until - time.monotonic(), 0.0), _LONGEST_WAIT_S)
        return request.model_copy(update={"wait_s": round(wait_s, 3)})

    def pause_s(self, error: ProblemError) -> float | None:
        """Seconds to wait before the same call again; None when the caller has to know of the problem.

        A 429 was not executed, whatever the call: it is safe to make again, after the time that the service
        says. An open comes again as long as its time for waiting lasts, because the gateway is told each time what
        is left of it; any other call only when there is then time for a try as long as the last: one that
        is given up in the middle may be executed after all.
        """
        now = time.monotonic()
        took_s, self._began = now - self._began, now
        if error.problem.status != _TOO_MANY or error.retry_after_s is None:
            return None
        pause = error.retry_after_s * (1 + random.uniform(0, _SPREAD))
        self._began += pause
        last = self._deadline - took_s if self._wait_until is None else self._wait_until
        return pause if now + pause < last else None
