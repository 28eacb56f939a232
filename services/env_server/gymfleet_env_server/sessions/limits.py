"""The limits under which a shard calls its environments."""

import math
from collections.abc import Callable
from typing import TypeVar

from gymfleet_env_server.shards.coroutines import own_cpu_s
from gymfleet_env_server.shards.threads import SessionThreads

T = TypeVar("T")


class Limits:
    """The limits on an environment's calls and answers.

    Args:
        beat: called before each call into an environment, with its name and the task's own time limit (0: none).
        step_timeout_s: time for one call; a task's own limit exceeds it only where the environment allows that.
        session_cpu_s: processor time of a session; None for no limit.
        session_wall_s: age of a session; None for no limit.
        expert_s: time for one move of an expert; None for no limit.
        cpu_clock: processor time of the calling thread or job, in seconds; read only where it is limited.
        threads: for environments that wait; without them, every call runs on the calling thread.
    """

    __slots__ = (
        "beat",
        "cpu_clock",
        "expert_s",
        "max_observation_chars",
        "session_cpu_s",
        "session_wall_s",
        "step_timeout_s",
        "threads",
        "trace",
    )

    def __init__(
        self,
        max_observation_chars: int,
        beat: Callable[[str, float], None],
        *,
        session_cpu_s: float | None = None,
        session_wall_s: float | None = None,
        expert_s: float | None = None,
        step_timeout_s: float = math.inf,
        cpu_clock: Callable[[], float] = own_cpu_s,
        threads: SessionThreads | None = None,
    ) -> None:
        self.max_observation_chars = max_observation_chars
        self.beat = beat
        self.session_cpu_s = session_cpu_s
        self.session_wall_s = session_wall_s
        self.expert_s = expert_s
        self.step_timeout_s = step_timeout_s
        self.cpu_clock = cpu_clock if session_cpu_s is not None else _no_clock
        self.threads = threads
        self.trace = ""
        """The `traceparent` of the current call, for the log."""

    def apart(self, call: Callable[[], T]) -> T:
        """Make a call that may wait, and let other sessions' calls run meanwhile."""
        if self.threads is None:
            return call()
        trace = self.trace
        try:
            return self.threads.apart(call)
        finally:
            self.trace = trace


def _no_clock() -> float:
    return 0.0
