"""The shard handles of a pool: each has one shard at a time, its pending calls and what is known of its progress."""

from collections.abc import Iterable
from typing import Final

import msgspec
from gymfleet_kit.session_api.calls import Done

from gymfleet_env_server.shards.channel import Call
from gymfleet_env_server.shards.process import Progress, ShardProcess

_BUSY_WEIGHT: Final = 8.0
"""A shard that is busy all the time counts as one with this many times more load."""
_IDLE: Final = Progress(0, 0, 0, 0)
_US: Final = 1e-6


class Opening:
    """An open on its way to a shard. It waits until `deadline` for a shard that is alive."""

    __slots__ = ("again", "body", "deadline", "done", "replies", "slots", "trace")

    def __init__(
        self, body: msgspec.Raw, done: Done, trace: str, deadline: float, slots: int, replies: bytes = b""
    ) -> None:
        self.body = body
        self.replies = replies
        self.slots = slots
        self.done = done
        self.trace = trace
        self.deadline = deadline
        self.again = False
        """Whether a shard has already died while it held this open."""


class Pending:
    """A call that waits for its answer. `slots` are reserved for the sessions that it may make."""

    __slots__ = ("done", "opening", "session_id", "slots")

    def __init__(self, done: Done, session_id: str, slots: int, opening: Opening | None = None) -> None:
        self.done = done
        self.session_id = session_id
        self.slots = slots
        self.opening = opening


class ShardHandle:
    """A handle on one shard after another, and on the calls to the current one."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.life = 0
        self.prefix = ""
        """The prefix of the ids of the shard's sessions."""
        self.process: ShardProcess | None = None
        self.alive = False
        self.born_at = 0.0
        self.quick_deaths = 0
        self.slots = 0
        self.reserved = 0
        self.pending: dict[int, Pending] = {}
        self.outbox: list[Call] = []
        self.seen = _IDLE
        self.seen_at = 0.0
        self.progress_at = 0.0
        self.busy = 0.0
        """Fraction of the time that the shard was busy recently."""
        self.condemned = ""
        """Why the front killed the shard; empty if it did not."""
        self.stuck = 0
        """Number of calls that were given up and are still running."""
        self.given_up = (0, 0.0)
        """Number of the last call that was given up, and the time until which the shard may take to notice."""

    @property
    def load(self) -> int:
        """Number of slots that sessions take or are about to take."""
        return self.slots + self.reserved

    @property
    def price(self) -> float:
        """The cost of opening a session here: it grows with the slots taken and with how busy the shard is."""
        return (self.load + 1) * (1 + _BUSY_WEIGHT * self.busy)

    def occupy(self, process: ShardProcess, now: float) -> None:
        """Take over a shard that is ready."""
        self.process = process
        self.alive = True
        self.born_at = self.seen_at = self.progress_at = now
        self.seen = _IDLE
        self.busy = 0.0

    def vacate(self) -> dict[int, Pending]:
        """Reset the handle after its shard has died, and return the calls that are left unanswered."""
        left = self.pending
        self.life += 1
        self.alive = False
        self.process = None
        self.condemned = ""
        self.stuck = 0
        self.given_up = (0, 0.0)
        self.slots = self.reserved = 0
        self.pending, self.outbox = {}, []
        return left

    def look(self, now: float) -> None:
        """Read the shard's progress and update how busy it is."""
        if self.process is None:
            return
        progress = self.process.progress()
        if progress.number and not progress.since_us and progress[:2] == self.seen[:2]:
            share = 1.0  # busy with one call all the time; the shard reports that only afterwards
        else:
            share = min(_US * (progress.busy_us - self.seen.busy_us) / max(now - self.seen_at, 1e-3), 1.0)
        self.busy = (self.busy + share) / 2
        if progress[:2] != self.seen[:2] or not self.pending:
            self.progress_at = now
        self.seen, self.seen_at = progress, now

    def hangs(self, now: float, usual_s: float) -> bool:
        """Return whether the shard has worked on one call of an environment for too long, by default `usual_s`."""
        limit_s = self.seen.limit_s(usual_s)
        if not self.pending or self.condemned:
            return False
        # Of calls in threads the oldest counts, however many others complete meanwhile.
        since = self.seen.since_us * _US if self.seen.since_us else self.progress_at
        return now - min(since, self.progress_at) > limit_s

    def give_up(self, now: float, max_stuck: int, grace_s: float) -> Pending | None:
        """Give up a hanging call if that costs only its own session; return None if the whole shard has to go.

        It costs only the session for calls in threads, as long as the shard notices and not too many threads are stuck.
        """
        number = self.seen.number
        call = self.pending.get(number)
        if not self.seen.since_us or call is None or self.stuck >= max_stuck:
            return None
        if not (call.session_id or call.opening):
            return None  # a probe: the shard is unhealthy
        del self.pending[number]
        self.reserved -= call.slots
        self.given_up = (number, now + grace_s)
        return call

    def heeds(self, now: float) -> bool:
        """Return whether the shard still has time to notice that its oldest call was given up."""
        number, until = self.given_up
        return number == self.seen.number and now < until

    def condemn(self, cause: str) -> None:
        """Kill the shard; its death is noticed as any other."""
        self.condemned = cause
        if self.process is not None:
            self.process.kill()


def cheapest(handles: Iterable[ShardHandle]) -> ShardHandle | None:
    """Return the handle on which to open a session; None when no shard is alive."""
    return min((handle for handle in handles if handle.alive), key=lambda handle: handle.price, default=None)
