"""Threads for environments that wait, so that a waiting session delays no other.

One lock lets one thread at a time work on a shard's sessions, as the interpreter's own lock
does with its objects: the working thread holds it, and releases it while a waiting environment
is called. So no other part of a shard has to know about threads. Environments with `async`
methods use `coroutines` instead of threads.
"""

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol, TypeAlias, TypeVar

import structlog

from gymfleet_env_server.shards.coroutines import Job, SessionCoroutines

_POLL_S: Final = 0.005
IDLE_S: Final = 30.0
"""A thread that has been idle for this long ends."""
STACK_BYTES: Final = 2 * 1024 * 1024
"""Stack size of a thread. The usual 8 MiB would count against a shard's memory limit for each thread; with 1 MiB,
CPython 3.11 crashes before it reaches its recursion limit."""
T = TypeVar("T")
_Workers: TypeAlias = "_Threads | SessionCoroutines"
log = structlog.get_logger()


class Clock(Protocol):
    """Receives a notice when a call into an environment has returned."""

    def returned(self) -> None:
        """Note that the caller's call into an environment has returned."""


class SessionThreads:
    """Runs jobs under the lock: jobs of one session in order, jobs of different sessions concurrently.

    Threads are started when jobs need them and end after being idle for a while. Opens have
    their own threads, so that a new session does not wait for existing ones.

    Every method except `woken` and `wait_idle` is called with `lock` held.

    Args:
        max_threads: number of jobs of an environment that run at once, and as many opens; more wait in a queue.
        clock: is notified of each call's end before the lock is acquired again.
        at_once: a smaller number for some environments, by name.
        awaiting: environments whose jobs run in the event loop instead of a thread.
    """

    def __init__(
        self,
        max_threads: int,
        clock: Clock,
        at_once: Mapping[str, int] | None = None,
        awaiting: Collection[str] = (),
    ) -> None:
        self.lock: Final = threading.Lock()
        self.wake_fd, self._signal_fd = os.pipe()
        """`wake_fd` is readable when a job has ended since the last call of `woken`."""
        self._clock = clock
        self._signalled = False
        self._max_threads = max_threads
        self._at_once = at_once or {}
        self._awaiting = awaiting
        # By session: the jobs that wait for the running one, and the workers that run them.
        self._lines: dict[str, tuple[deque[Job], _Workers]] = {}
        self._workers: dict[tuple[str, str], _Workers] = {}
        # By session: the workers in which its job is stuck.
        self._stuck: dict[str, _Workers] = {}

    def submit(self, session_id: str, job: Job, env: str = "") -> None:
        """Run `job` after the session's earlier jobs. Its exceptions are logged."""
        if (found := self._lines.get(session_id)) is None:
            self._begin(session_id, job, self._of("session", env))
        else:
            found[0].append(job)

    def submit_open(self, open_id: str, job: Job, env: str) -> None:
        """Run `job` in a thread that no open session can keep busy."""
        self._begin(open_id, job, self._of("open", env))

    def submit_probe(self, probe_id: str, job: Job) -> None:
        """Run `job` in a thread that no session can keep busy."""
        self._begin(probe_id, job, self._of("probe", ""))

    def abandon(self, session_id: str, heeded: Callable[[], None]) -> list[Job]:
        """Stop waiting for the session's running job, which is stuck: another job may run in its place.

        Returns the jobs queued behind it. If the job ends after all, its thread continues as any other. `heeded` is
        called as soon as the stuck job delays no other job; a job that blocks the event loop still does.
        """
        line, workers = self._lines.pop(session_id)
        self._stuck[session_id] = workers
        workers.give_up(session_id, heeded)
        return list(line)

    def busy(self, session_id: str) -> bool:
        """Return whether a job of the session is running or queued."""
        return session_id in self._lines

    def apart(self, call: Callable[[], T]) -> T:
        """Make a call that may wait, with the lock released."""
        self.lock.release()
        try:
            return call()
        finally:
            self._clock.returned()
            self.lock.acquire()

    def drop(self) -> None:
        """Drop the jobs that are still queued."""
        for line, _ in self._lines.values():
            line.clear()
        for workers in self._workers.values():
            for session_id in workers.take_all():
                del self._lines[session_id]

    def woken(self) -> None:
        """Make `wake_fd` unreadable until the next job ends. It must not be called with `lock` held."""
        os.read(self.wake_fd, 1)
        with self.lock:
            self._signalled = False

    def wait_idle(self, until: Callable[[], bool]) -> None:
        """Return when no job is left, or when `until` says so. It must not be called with `lock` held."""
        while self._lines and not until():
            time.sleep(_POLL_S)

    def _of(self, kind: str, env: str) -> _Workers:
        workers = self._workers.get((kind, env))
        if workers is None:
            at_once = 1 if kind == "probe" else min(self._at_once.get(env, self._max_threads), self._max_threads)
            if env in self._awaiting:
                workers = SessionCoroutines(at_once, self.lock, self._run)
            else:
                workers = _Threads(kind, at_once, self.lock, self._run)
            self._workers[kind, env] = workers
        return workers

    def _begin(self, session_id: str, job: Job, workers: _Workers) -> None:
        self._lines[session_id] = (deque(), workers)
        workers.put(session_id, job)

    def _run(self, session_id: str, job: Job) -> None:
        """Run a job in a thread or on a stack, with the lock held."""
        try:
            job()
        except (Exception, SystemExit):
            log.exception("job.failed", session_id=session_id)
        if (stuck := self._stuck.pop(session_id, None)) is not None:
            stuck.add_room(-1)
        else:
            line, workers = self._lines[session_id]
            if line:  # queued behind other sessions' jobs
                workers.put(session_id, line.popleft())
            else:
                del self._lines[session_id]
        if not self._signalled:
            self._signalled = True
            os.write(self._signal_fd, b"\0")


class _Threads:
    """Up to `max_threads` threads, started when they are needed, that take jobs off one queue.

    They end after being idle for a while, and with the process, whatever they wait for: those of
    `concurrent.futures` would keep the process alive. All is done with the lock held.
    """

    def __init__(self, name: str, max_threads: int, lock: threading.Lock, run: Callable[[str, Job], None]) -> None:
        self._name = name
        self._max_threads = max_threads
        self._run = run
        self._jobs: deque[tuple[str, Job]] = deque()
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._names = itertools.count()
        self._num_threads = 0
        self._num_idle = 0
        """Number of threads that wait for a job, including those that were woken for one and have not begun."""

    def put(self, session_id: str, job: Job) -> None:
        self._jobs.append((session_id, job))
        if len(self._jobs) <= self._num_idle:
            self._changed.notify()
        elif self._num_threads < self._max_threads:
            self._start()

    def add_room(self, number: int) -> None:
        """Allow `number` more threads, or fewer if it is negative."""
        self._max_threads += number
        if len(self._jobs) > self._num_idle and self._num_threads < self._max_threads:
            self._start()

    def give_up(self, _session_id: str, heeded: Callable[[], None]) -> None:
        """Leave a thread to the job that is stuck in it, and make room for another thread."""
        self.add_room(1)
        heeded()

    def take_all(self) -> list[str]:
        """Drop the jobs that no thread has taken, and return their sessions."""
        taken = [session_id for session_id, _ in self._jobs]
        self._jobs.clear()
        return taken

    def _start(self) -> None:
        name = f"{self._name}-{next(self._names)}"
        try:
            threading.Thread(target=self._work, name=name, daemon=True).start()
        except RuntimeError as error:  # the system allows no more threads: the job waits for an existing one
            log.warning("thread.not_started", threads=self._num_threads, reason=str(error))
            if not self._num_threads:
                raise
        else:
            self._num_threads += 1

    def _work(self) -> None:
        with self._lock:
            while (taken := self._next()) is not None:
                self._run(*taken)
                del taken  # or the job, and its session with it, would stay referenced until the next job
            self._num_threads -= 1

    def _next(self) -> tuple[str, Job] | None:
        """Return the next job, or None when there was none for a while."""
        while not self._jobs:
            self._num_idle += 1
            woken = self._changed.wait(IDLE_S)
            self._num_idle -= 1
            if not woken and not self._jobs:
                return None
        return self._jobs.popleft()
