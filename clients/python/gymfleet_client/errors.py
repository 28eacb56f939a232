"""Exceptions, one class per reaction of the caller: for a service's answers and for failures of the connection."""

import math
from typing import Any, ClassVar, Final, NoReturn

from gymfleet_contracts import problems
from gymfleet_contracts.problems import Problem
from pydantic import ValidationError

__all__ = [
    "ActionTooLarge",
    "ActionsUnavailable",
    "BadRequest",
    "ClientError",
    "DeadlinePassed",
    "EnvironmentFailed",
    "EnvironmentFull",
    "EpisodeOver",
    "ExpertUnavailable",
    "Forbidden",
    "ForkUnsupported",
    "InternalError",
    "InvalidToolCall",
    "Irreversible",
    "NotYourTurn",
    "PayloadTooLarge",
    "ProblemError",
    "QuotaExceeded",
    "RateLimited",
    "SessionLimit",
    "SessionLost",
    "StepOutOfOrder",
    "StepTimeout",
    "TransportError",
    "Unauthorized",
    "Unavailable",
    "UnknownEnvironment",
    "UnknownSession",
    "UnknownTask",
    "UpstreamTimeout",
    "ValidationFailed",
    "parse_problem",
    "problem_error",
    "raise_for_problem",
]


class ClientError(Exception):
    """The base class of everything that this package raises on purpose."""


class TransportError(ClientError):
    """No answer came: the connection could not be made or was lost. It is unknown whether the call was executed."""


class DeadlinePassed(TransportError):
    """No answer came within the call's `timeout_s`."""


class ProblemError(ClientError):
    """A service answered with a problem (RFC 9457). Subclasses stand for the types that callers branch on."""

    type: ClassVar[str | None] = None

    def __init__(self, problem: Problem, *, retry_after_s: float | None = None) -> None:
        super().__init__(f"{problem.title}: {problem.detail}" if problem.detail else problem.title)
        self.problem = problem
        self.retry_after_s = _retry_after_s(problem, retry_after_s)
        """Seconds until another try is worthwhile, if the service gives them."""


class BadRequest(ProblemError):
    """The request cannot be served in this form."""

    type = problems.BAD_REQUEST


class ValidationFailed(ProblemError):
    """A field of the request is missing or wrong; `problem.errors` lists them."""

    type = problems.VALIDATION


class InternalError(ProblemError):
    """A bug in the service; its log has the traceback."""

    type = problems.INTERNAL


class Unavailable(ProblemError):
    """The service, or every replica of the environment, is down at the moment."""

    type = problems.UNAVAILABLE


class UpstreamTimeout(ProblemError):
    """The env server did not answer the gateway in time; a step may be repeated with the same index."""

    type = problems.UPSTREAM_TIMEOUT


class PayloadTooLarge(ProblemError):
    """The body exceeds the service's limit."""

    type = problems.PAYLOAD_TOO_LARGE


class Unauthorized(ProblemError):
    """The request has no API key, or one that the gateway does not know."""

    type = problems.UNAUTHORIZED


class Forbidden(ProblemError):
    """The API key is valid, but not for this."""

    type = problems.FORBIDDEN


class RateLimited(ProblemError):
    """The tenant calls more often than it may. Nothing was executed."""

    type = problems.RATE_LIMITED


class QuotaExceeded(ProblemError):
    """The tenant has as many sessions open as it may: close one. Nothing was executed."""

    type = problems.QUOTA_EXCEEDED


class UnknownEnvironment(ProblemError):
    """No environment has this name."""

    type = problems.UNKNOWN_ENVIRONMENT


class UnknownTask(ProblemError):
    """There is no such split, level, index or id."""

    type = problems.UNKNOWN_TASK


class UnknownSession(ProblemError):
    """The session was never opened, was closed, or its lease ran out."""

    type = problems.UNKNOWN_SESSION


class SessionLost(ProblemError):
    """The process that held the session died; the episode is over and says nothing about the policy."""

    type = problems.SESSION_LOST


class EnvironmentFull(ProblemError):
    """All slots are taken, and the wait for one was too long; try again later."""

    type = problems.ENVIRONMENT_FULL


class StepOutOfOrder(ProblemError):
    """The step's index is neither the next nor the last one."""

    type = problems.STEP_OUT_OF_ORDER


class EpisodeOver(ProblemError):
    """The episode ended; nothing more can be done in it."""

    type = problems.EPISODE_OVER


class ActionTooLarge(ProblemError):
    """The action exceeds the environment's `max_action_chars`."""

    type = problems.ACTION_TOO_LARGE


class EnvironmentFailed(ProblemError):
    """The environment raised; the session is unusable."""

    type = problems.ENVIRONMENT_FAILED


class StepTimeout(ProblemError):
    """The environment did not finish the step in time; the session is unusable."""

    type = problems.STEP_TIMEOUT


class SessionLimit(ProblemError):
    """The session used up its processor time or its age; it is closed for good."""

    type = problems.SESSION_LIMIT


class ForkUnsupported(ProblemError):
    """The environment cannot be forked."""

    type = problems.FORK_UNSUPPORTED


class ExpertUnavailable(ProblemError):
    """There is no expert, or none for this split or state."""

    type = problems.EXPERT_UNAVAILABLE


class ActionsUnavailable(ProblemError):
    """The environment cannot say which actions are possible, or not in this state."""

    type = problems.ACTIONS_UNAVAILABLE


class UnknownImage(ProblemError):
    """The session's last observation shows no such image; those of earlier observations are gone."""

    type = problems.UNKNOWN_IMAGE


class Irreversible(ProblemError):
    """The session has taken an action that cannot be undone, so it cannot be forked by a replay."""

    type = problems.IRREVERSIBLE


class InvalidToolCall(ProblemError):
    """There is no such tool, or its arguments do not fit."""

    type = problems.INVALID_TOOL_CALL


class NotYourTurn(ProblemError):
    """Another player of the game is to move: look again, and act when `game.to_move` is your seat."""

    type = problems.NOT_YOUR_TURN


_BY_TYPE: Final[dict[str, type[ProblemError]]] = {
    error.type: error for error in ProblemError.__subclasses__() if error.type is not None
}


def problem_error(problem: Problem, *, retry_after_s: float | None = None) -> ProblemError:
    """Return the exception for the problem's type; `ProblemError` itself for a type without a class."""
    return _BY_TYPE.get(problem.type, ProblemError)(problem, retry_after_s=retry_after_s)


def raise_for_problem(problem: Problem) -> NoReturn:
    """Raise `problem_error(problem)`."""
    raise problem_error(problem)


def parse_problem(body: Any, status: int) -> Problem:
    """Read a decoded body as a problem; anything else becomes a problem that quotes only the status."""
    if isinstance(body, dict):
        try:
            return Problem.model_validate(body)
        except ValidationError:
            pass
    return Problem(title=f"HTTP {status}", status=status, detail="the answer is not a problem document")


def _retry_after_s(problem: Problem, otherwise: float | None) -> float | None:
    """Return the problem's own figure, else `otherwise`."""
    own = (problem.model_extra or {}).get("retry_after_s")
    if isinstance(own, int | float) and math.isfinite(own) and own >= 0:
        return float(own)
    return otherwise
