"""Errors that only an env server returns."""

from gymfleet_contracts import problems
from gymfleet_kit.problems import ServiceError


class ShardUnavailable(ServiceError):
    """No worker process can take a session just now."""

    type = problems.UNAVAILABLE
    title = "The environment's processes are starting"
    status = 503
    retry_after_s = 1


class Draining(ServiceError):
    """The server is shutting down: another replica has to open the session."""

    type = problems.UNAVAILABLE
    title = "The server is draining"
    status = 503
    retry_after_s = 1
