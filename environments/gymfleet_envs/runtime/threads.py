"""Threads for environments that wait, so that a session that waits holds up no other.

One lock lets one thread at a time at a shard's sessions, as the interpreter's own does
with its objects: whoever works holds it, and lays it down while a waiting environment
is called. So nothing else of a shard has to know of threads.
"""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import structlog

_POLL_S: Final = 0.005
T = TypeVar("T")
Job = Callable[[], object]
log = structlog.get_logger()


class Clock(Protocol):
    """Is told when a thread's call into an environment has returned."""

    def returned(self) -> None:
        """The call of this thread."""


class SessionThreads:
    """Runs jobs under the lock: those of one session in their order, of different sessions at the same time.

    Every method but `woken` and `wait_idle` is called with `lock` held.

    Args:
        max_threads: jobs at once; more wait in line.
        clock: is told of each call's end before the lock is sought again.
    """

    def __init__(self, max_threads: int, clock: Clock) -> None:
        self.lock: Final = threading.Lock()
        self.wake_fd, self._signal_fd = os.pipe()
        """`wake_fd` is readable when a job has ended since `woken`."""
        self._clock = clock
        self._signalled = False
        # By session: the jobs that wait for the one in work.
        self._lines: dict[str, deque[Job]] = {}
        self._calls = _Threads("session", max_threads, self._run)
        self._probes = _Threads("probe", 1, self._run)

    def submit(self, session_id: str, job: Job) -> None:
        """Run `job` when the session's jobs before it have ended. What it raises is logged."""
        line = self._lines.get(session_id)
        if line is None:
            self._lines[session_id] = deque()
            self._calls.put(session_id, job)
        else:
            line.append(job)

    def submit_probe(self, probe_id: str, job: Job) -> None:
        """Run `job` in a thread that no session can keep busy."""
        self._lines[probe_id] = deque()
        self._probes.put(probe_id, job)

    def busy(self, session_id: str) -> bool:
        """Whether a job of the session is in work or in line."""
        return session_id in self._lines

    def apart(self, call: Callable[[], T]) -> T:
        """Call something that may wait, with the lock laid down."""
        self.lock.release()
        try:
            return call()
        finally:
            self._clock.returned()
            self.lock.acquire()

    def drop(self) -> None:
        """Forget the jobs that are still in line."""
        for line in self._lines.values():
            line.clear()
        for session_id in (*self._calls.take_all(), *self._probes.take_all()):
            del self._lines[session_id]

    def woken(self) -> None:
        """Make `wake_fd` unreadable until the next job ends. Not to be called with `lock` held."""
        os.read(self.wake_fd, 1)
        with self.lock:
            self._signalled = False

    def wait_idle(self, until: Callable[[], bool]) -> None:
        """Return when no job is left, or when `until` says so. Not to be called with `lock` held."""
        while self._lines and not until():
            time.sleep(_POLL_S)

    def _run(self, session_id: str, job: Job) -> None:
        with self.lock:
            try:
                job()
            except (Exception, SystemExit):
                log.exception("job.failed", session_id=session_id)
            line = self._lines[session_id]
            if line:  # behind the jobs of others
                self._calls.put(session_id, line.popleft())
            else:
                del self._lines[session_id]
            if not self._signalled:
                self._signalled = True
                os.write(self._signal_fd, b"\0")


class _Threads:
    """Up to so many threads, started when they are first needed, that take jobs off one queue.

    They end with the process, whatever they wait for: those of `concurrent.futures` would keep it alive.
    """

    def __init__(self, name: str, max_threads: int, run: Callable[[str, Job], None]) -> None:
        self._name = name
        self._max_threads = max_threads
        self._run = run
        self._jobs: queue.SimpleQueue[tuple[str, Job]] = queue.SimpleQueue()
        self._num_threads = 0
        self._idle = threading.Semaphore(0)

    def put(self, session_id: str, job: Job) -> None:
        self._jobs.put((session_id, job))
        if self._num_threads < self._max_threads and not self._idle.acquire(blocking=False):
            threading.Thread(target=self._work, name=f"{self._name}-{self._num_threads}", daemon=True).start()
            self._num_threads += 1

    def take_all(self) -> list[str]:
        """The sessions of the jobs that no thread has taken; they are forgotten."""
        taken = []
        while True:
            try:
                taken.append(self._jobs.get_nowait()[0])
            except queue.Empty:
                return taken

    def _work(self) -> None:
        while True:
            session_id, job = self._jobs.get()
            self._run(session_id, job)
            del job  # else it would be held, and its session with it, until the next one
            self._idle.release()
