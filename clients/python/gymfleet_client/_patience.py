"""How long to wait for a slot, and whether to repeat a call that a service turned away."""

import random
import time
from typing import Final

from gymfleet_contracts.session import OpenSession

from gymfleet_client.errors import ProblemError

_TOO_MANY: Final = 429
_OPENING_PART: Final = 0.2
"""The share of an open's time not spent waiting, so that the client does not give up on a session just opened."""
_LONGEST_WAIT_S: Final = 3600.0
_SPREAD: Final = 0.1
"""Random extra pause, so that many callers that were turned away together do not all return together."""


class Patience:
    """The time of one call, including its repeats after a 429.

    Args:
        timeout_s: the time for the call and all repeats.
        opening: an open, which the gateway may hold in its queue, for the caller's own `wait_s` if it has one.
    """

    def __init__(self, timeout_s: float, opening: OpenSession | None = None) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s
        self._wait_until = None if opening is None else self._deadline - _OPENING_PART * timeout_s
        if opening is not None and opening.wait_s is not None:
            self._wait_until = min(self._began + opening.wait_s, self._deadline)

    @property
    def remaining_s(self) -> float:
        """The seconds that are left, never quite zero."""
        return max(self._deadline - time.monotonic(), 0.001)

    def told(self, request: OpenSession) -> OpenSession:
        """Return the request of the next try, with the time that the gateway may let it wait for a slot."""
        if self._wait_until is None:
            return request
        wait_s = min(max(self._wait_until - time.monotonic(), 0.0), _LONGEST_WAIT_S)
        return request.model_copy(update={"wait_s": round(wait_s, 3)})

    def pause_s(self, error: Exception) -> float | None:
        """Return the seconds to wait before the same call is made again; None if the error goes to the caller.

        A call answered with 429 was not executed, so it is safe to repeat after the time given by the service. An
        open is repeated as long as its waiting time lasts, because each try tells the gateway how much of it is
        left. Any other call is repeated only if there is then time for a try as long as the last one, because a
        call that is given up in the middle may be executed after all.
        """
        now = time.monotonic()
        took_s, self._began = now - self._began, now
        if not isinstance(error, ProblemError) or error.problem.status != _TOO_MANY or error.retry_after_s is None:
            return None
        pause = error.retry_after_s * (1 + random.uniform(0, _SPREAD))
        self._began += pause
        last = self._deadline - took_s if self._wait_until is None else self._wait_until
        return pause if now + pause < last else None
