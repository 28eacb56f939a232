"""Why recent sessions were closed, so that a repeated call gets the reason and not `unknown-session`."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from gymfleet_kit.problems import ServiceError

_MAX_ENDED: Final = 1024


class Endings:
    """The reasons by session; the oldest are forgotten."""

    def __init__(self) -> None:
        self._reasons: OrderedDict[str, Callable[[], ServiceError]] = OrderedDict()

    def remember(self, session_id: str, error: ServiceError) -> None:
        """Keep the reason for which a session was closed."""
        # Not the error itself: its traceback keeps the frames alive, and so the environment.
        kind, detail, extensions = type(error), error.detail, error.extensions
        self._reasons[session_id] = lambda: kind(detail, **extensions)
        if len(self._reasons) > _MAX_ENDED:
            self._reasons.popitem(last=False)

    def reason(self, session_id: str) -> ServiceError | None:
        """Return why the session was closed; None where that is not known."""
        reason = self._reasons.get(session_id)
        return None if reason is None else reason()

    def forget(self, session_id: str) -> None:
        """Forget the reason: the session's caller has closed it as well."""
        self._reasons.pop(session_id, None)
