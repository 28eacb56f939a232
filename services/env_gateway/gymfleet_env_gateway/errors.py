"""Errors that only the gateway returns; the others are in `gymfleet_kit.session_problems`."""

import math
from typing import Self

from gymfleet_contracts import problems
from gymfleet_kit.access import Forbidden, Unauthorized
from gymfleet_kit.problems import ServiceError, TryLater
from pydantic import JsonValue

__all__ = [
    "Forbidden",
    "NoGame",
    "NotYourTurn",
    "QueueFull",
    "QuotaExceeded",
    "RateLimited",
    "TooMany",
    "Unauthorized",
    "Unavailable",
    "UpstreamTimeout",
]


class Unavailable(TryLater):
    """No replica can take the call now."""

    type = problems.UNAVAILABLE
    title = "No replica can take the call now"


class NoGame(ServiceError):
    """The session has no seats to give."""

    type = problems.NO_SEATS
    title = "The session is no game"
    status = 409


class NotYourTurn(ServiceError):
    """Another player of the game is to move."""

    type = problems.NOT_YOUR_TURN
    title = "Another player is to move"
    status = 409


class UpstreamTimeout(ServiceError):
    """The env server did not answer in time."""

    type = problems.UPSTREAM_TIMEOUT
    title = "The env server did not answer in time"
    status = 504


class TooMany(ServiceError):
    """The call was rejected and not executed. `retry_after_s` says when to try again."""

    status = 429

    def __init__(self, detail: str, *, wait_s: float, **extensions: JsonValue) -> None:
        # Frames of a stream have no headers, so the problem itself carries the figure too.
        super().__init__(detail, retry_after_s=round(wait_s, 3), **extensions)
        self.wait_s = wait_s

    def headers(self) -> dict[str, str]:
        """The headers, with whole seconds as RFC 9110 requires, rounded so that a retry is never too early."""
        return {**super().headers(), "Retry-After": str(max(1, math.ceil(self.wait_s)))}


class QueueFull(TooMany):
    """All slots are taken, and the wait for one was too long or would be."""

    type = problems.ENVIRONMENT_FULL
    title = "All slots of this environment are taken"


class QuotaExceeded(TooMany):
    """The tenant holds as many sessions as it may: close one first."""

    type = problems.QUOTA_EXCEEDED
    title = "The tenant's quota of sessions is used up"

    @classmethod
    def of(cls, tenant: str, max_sessions: int, state: str) -> Self:
        """Make the error; `state` says what uses up the quota. Only the tenant knows when one of its sessions ends."""
        detail = f"tenant {tenant} has {state}, and may have {max_sessions}: close one first"
        return cls(detail, wait_s=1.0, max_sessions=max_sessions)


class RateLimited(TooMany):
    """The tenant calls more often than it may."""

    type = problems.RATE_LIMITED
    title = "The tenant's rate limit is reached"
