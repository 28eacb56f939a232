"""Whether to make a call again that a service turned away, and when."""

import random
from typing import Final

from gymfleet_client.errors import ProblemError

_TOO_MANY: Final = 429
_SPREAD: Final = 0.1
"""Many who were turned away at once do not all come back at once."""


def pause_s(error: ProblemError, remaining_s: float) -> float | None:
    """Seconds to wait before the same call again; None when the caller has to know of the problem.

    A 429 was not executed, whatever the call: it is safe to make again. That is done
    when the service says after how long, and the caller's time is not up before.
    """
    if error.problem.status != _TOO_MANY or error.retry_after_s is None:
        return None
    pause = error.retry_after_s * (1 + random.uniform(0, _SPREAD))
    return pause if pause < remaining_s else None
