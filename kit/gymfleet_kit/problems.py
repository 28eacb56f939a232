"""Expected failures: one class per reaction of the caller. `problem_handlers` puts them on the wire."""

from typing import Any, ClassVar

from gymfleet_contracts import problems
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE, Problem
from pydantic import JsonValue


class ServiceError(Exception):
    """An expected failure. The subclass fixes what the caller branches on.

    Anything else that escapes a handler is a bug: it is logged with its
    traceback and answered with a bare 500 that reveals nothing internal.
    """

    type: ClassVar[str] = problems.BAD_REQUEST
    title: ClassVar[str] = "The request cannot be served"
    status: ClassVar[int] = 400
    retry_after_s: ClassVar[int | None] = None

    def __init__(self, detail: str, **extensions: JsonValue) -> None:
        super().__init__(detail)
        self.detail = detail
        self.extensions = extensions

    def problem(self) -> Problem:
        """Return the wire form."""
        own = {"type": self.type, "title": self.title, "status": self.status, "detail": self.detail}
        return Problem.model_validate({**self.extensions, **own})

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers to send with the problem."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}


class TryLater(ServiceError):
    """The call was refused for now: if repeated after `retry_after_s`, it may succeed."""

    status = 503
    retry_after_s = 1


class RelayedProblem(ServiceError):
    """A problem with which another service answered, passed on unchanged."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self._problem = problem

    def problem(self) -> Problem:
        """Return the other service's problem unchanged."""
        return self._problem


class PayloadTooLarge(ServiceError):
    """The body exceeds the limit, and was not read to its end."""

    type = problems.PAYLOAD_TOO_LARGE
    title = "The body is too large"
    status = 413


def internal_problem() -> Problem:
    """Return the problem that a caller gets after a bug: it reveals nothing internal."""
    return Problem(type=problems.INTERNAL, title="Internal error", status=500, detail="see the service's log")


def problem_responses(*errors: type[ServiceError]) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of the failures that a route declares."""
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    by_status: dict[int | str, dict[str, Any]] = {}
    for error in errors:
        entry = by_status.setdefault(error.status, {"model": Problem, "content": content, "description": ""})
        entry["description"] = "; ".join(filter(None, [entry["description"], error.title]))
    return by_status
