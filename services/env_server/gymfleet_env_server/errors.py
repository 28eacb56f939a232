"""Errors that only an env server returns."""

from gymfleet_contracts import problems
from gymfleet_kit.problems import TryLater


class ShardUnavailable(TryLater):
    """No worker process can take a session just now."""

    type = problems.UNAVAILABLE
    title = "The environment's processes are starting"


class Draining(TryLater):
    """The server is shutting down: another replica has to open the session."""

    type = problems.UNAVAILABLE
    title = "The server is draining"
