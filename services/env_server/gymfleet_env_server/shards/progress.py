"""A shard's progress, in memory shared with the front, which can thus tell a hanging shard from a busy one."""

import mmap
import struct
import threading
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from gymfleet_env_server.shards.coroutines import caller, own_cpu_s

PROGRESS: Final = struct.Struct("=QQQQQQ")
"""The number of the current call (0: none), a count of calls into environments, the position of the environment
that was called last, the microseconds spent on calls so far, the time at which a thread's call began, and the call's
own time limit in microseconds (0: the server's)."""
_WORK: Final = struct.Struct("=QQQ")
_BUSY: Final = struct.Struct("=Q")
_SINCE: Final = struct.Struct("=Q")
_LIMIT: Final = struct.Struct("=Q")
_LIMIT_OFFSET: Final = _WORK.size + _BUSY.size + _SINCE.size
_BUSY_OFFSET: Final = _WORK.size
_SINCE_OFFSET: Final = _WORK.size + _BUSY.size


class ShardProgress:
    """Progress of a shard that makes one call after another."""

    def __init__(self, shared: mmap.mmap, environments: Iterable[str]) -> None:
        self._shared = shared
        self._places = {name: place for place, name in enumerate(environments)}
        self._place = 0
        self._number = 0
        self._limit_s = 0.0
        self._beats = 0
        self._busy_s = 0.0

    def working_on(self, number: int) -> None:
        """Note that a call of the session API begins; 0 means that none is left."""
        self._number = number
        _WORK.pack_into(self._shared, 0, number, self._beats, self._place)

    def beat(self, env: str, limit_s: float = 0.0) -> None:
        """Note that the current call calls into an environment; `limit_s` is the task's own limit, 0 for none."""
        self._beats += 1
        self._place = self._places[env]
        if limit_s != self._limit_s:
            self._limit(limit_s)
        _WORK.pack_into(self._shared, 0, self._number, self._beats, self._place)

    def _limit(self, limit_s: float) -> None:
        self._limit_s = limit_s
        _LIMIT.pack_into(self._shared, _LIMIT_OFFSET, int(1e6 * limit_s))

    def abandon(self, number: int) -> None:
        """Stop reporting a call that nobody waits for; does nothing here, where no call can be given up by itself."""

    def worked(self, seconds: float) -> None:
        """Add time during which the shard was busy."""
        self._busy_s += seconds
        _BUSY.pack_into(self._shared, _BUSY_OFFSET, int(1e6 * self._busy_s))


class _AtWork(NamedTuple):
    """A call into an environment that runs in some thread or on some stack."""

    number: int
    place: int
    since_us: int
    cpu_s: float
    limit_s: float


class ThreadedProgress(ShardProgress):
    """Progress of a shard that makes calls in threads and in an event loop: it reports the call that is due first.

    That is the oldest one, unless tasks have limits of their own; `limit_s` is the limit of the others.
    """

    def __init__(self, shared: mmap.mmap, environments: Iterable[str], limit_s: float = 0.0) -> None:
        super().__init__(shared, environments)
        self._usual_limit_s = limit_s
        self._num_limited = 0
        # A separate lock: a call that has returned must not count while its thread waits for the shard's lock.
        self._lock = threading.Lock()
        self._numbers: dict[int, int] = {}
        self._at_work: dict[int, _AtWork] = {}  # by caller, the oldest first
        self._abandoned: set[int] = set()

    def working_on(self, number: int) -> None:
        """Note that a call begins on the calling thread or stack; 0 means that none is left."""
        who = caller()
        with self._lock:
            self._abandoned.discard(self._numbers.pop(who, 0))
            if number:
                self._numbers[who] = number
            self._leave(who)
            self._tell()

    def abandon(self, number: int) -> None:
        """Stop reporting a call that nobody waits for."""
        with self._lock:
            self._abandoned.add(number)
            self._tell()

    def beat(self, env: str, limit_s: float = 0.0) -> None:
        """Note that the call on the calling thread or stack calls into an environment."""
        who = caller()
        with self._lock:
            self._beats += 1
            self._leave(who)
            began_us = int(1e6 * time.monotonic())
            number = self._numbers.get(who, 0)
            self._at_work[who] = _AtWork(number, self._places[env], began_us, own_cpu_s(), limit_s)
            self._num_limited += limit_s > 0
            self._tell()

    def returned(self) -> None:
        """Note that the caller's call into an environment is over."""
        with self._lock:
            self._leave(caller())
            self._tell()

    def worked(self, seconds: float) -> None:
        """Add busy time of the shard's own thread; the processor time of environments is added automatically."""
        with self._lock:
            super().worked(seconds)

    def _leave(self, who: int) -> None:
        if (left := self._at_work.pop(who, None)) is not None:
            self._num_limited -= left.limit_s > 0
            super().worked(own_cpu_s() - left.cpu_s)

    def _tell(self) -> None:
        waited_for = (call for call in self._at_work.values() if call.number not in self._abandoned)
        first = min(waited_for, key=self._due_us, default=None) if self._num_limited else next(waited_for, None)
        number, self._place, since_us = (0, self._place, 0) if first is None else first[:3]
        if (limit_s := 0.0 if first is None else first.limit_s) != self._limit_s:
            self._limit(limit_s)
        _WORK.pack_into(self._shared, 0, number, self._beats, self._place)
        _SINCE.pack_into(self._shared, _SINCE_OFFSET, since_us)

    def _due_us(self, call: _AtWork) -> float:
        return call.since_us + 1e6 * (call.limit_s or self._usual_limit_s)
