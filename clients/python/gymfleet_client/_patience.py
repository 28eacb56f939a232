"""How long to wait for a slot, and whether to make a call again that a service turned away."""

import random
import time
from typing import Final

from gymfleet_contracts.session import OpenSession

from gymfleet_client.errors import ProblemError

_TOO_MANY: Final = 429
_QUEUE_PART: Final = 0.8
"""Of a call's time. The rest is for opening: who gives up first never learns of the session that is then his."""
_SPREAD: Final = 0.1
"""Many who were turned away at once do not all come back at once."""


def with_wait(request: OpenSession, timeout_s: float) -> OpenSession:
    """The request, with the time that the gateway may let it wait for a slot."""
    if request.wait_s is not None:
        return request
    return request.model_copy(update={"wait_s": min(_QUEUE_PART * timeout_s, 3600.0)})


class Patience:
    """One call's time, its repeats after a 429 included."""

    def __init__(self, timeout_s: float) -> None:
        self._began = time.monotonic()
        self._deadline = self._began + timeout_s

    @property
    def remaining_s(self) -> float:
        """What is left, never quite nothing."""
        return max(self._deadline - time.monotonic(), 0.001)

    def pause_s(self, error: ProblemError) -> float | None:
        """Seconds to wait before the same call again; None when the caller has to know of the problem.

        A 429 was not executed, whatever the call: it is safe to make again. That is done
        when the service says after how long, and when there is then time for a try as long
        as the last: one that is given up in the middle may be executed after all.
        """
        now = time.monotonic()
        took_s, self._began = now - self._began, now
        if error.problem.status != _TOO_MANY or error.retry_after_s is None:
            return None
        pause = error.retry_after_s * (1 + random.uniform(0, _SPREAD))
        self._began += pause
        return pause if now + pause + took_s < self._deadline else None
