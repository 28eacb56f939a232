"""Sessions whose calls are made in threads: their order, their leases, and what the front is told of them."""

import mmap
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gymfleet_envs.runtime import progress as progress_module
from gymfleet_envs.runtime import threads as threads_module
from gymfleet_envs.runtime.catalogue import Entry
from gymfleet_envs.runtime.channel import Tally
from gymfleet_envs.runtime.episode import Limits
from gymfleet_envs.runtime.errors import ShardUnavailable
from gymfleet_envs.runtime.metrics import SessionMetrics
from gymfleet_envs.runtime.progress import PROGRESS, ShardProgress, ThreadedProgress
from gymfleet_envs.runtime.seats import Pending, Seat
from gymfleet_envs.runtime.sessions import PROBE, PROBE_WAITING, Sessions
from gymfleet_envs.runtime.shard_process import Progress
from gymfleet_envs.runtime.threads import SessionThreads
from gymfleet_kit.session_problems import EnvironmentFailed, SessionLimit, SessionLost, UnknownSession

from tests.fixtures.waiting_environment import Waiting

WAIT_S = 20.0


class Silent:
    """Nobody looks at the progress."""

    def returned(self) -> None:
        """Nothing."""


class Meeting:
    """A job that says that it began, and waits to be let go."""

    def __init__(self, threads: SessionThreads, log: list[str], name: str) -> None:
        self.began, self.leave = threading.Event(), threading.Event()
        self._threads, self._log, self._name = threads, log, name

    def __call__(self) -> None:
        self._log.append(f"{self._name} begins")
        self.began.set()
        assert self._threads.apart(lambda: self.leave.wait(WAIT_S))
        self._log.append(f"{self._name} ends")


@pytest.fixture
def threads() -> SessionThreads:
    return SessionThreads(2, Silent())


def finish(threads: SessionThreads) -> None:
    deadline = time.monotonic() + WAIT_S
    threads.wait_idle(lambda: time.monotonic() > deadline)
    with threads.lock:
        assert not threads.busy("a")


def test_jobs_of_one_session_follow_each_other_and_those_of_two_overlap(threads: SessionThreads) -> None:
    log: list[str] = []
    first, second, other = (Meeting(threads, log, name) for name in ("a1", "a2", "b1"))

    with threads.lock:
        threads.submit("a", first)
        threads.submit("a", second)
        threads.submit("b", other)
    assert first.began.wait(WAIT_S)
    assert other.began.wait(WAIT_S), "while the other session's job waits"
    assert not second.began.is_set()
    other.leave.set()
    first.leave.set()
    assert second.began.wait(WAIT_S)
    second.leave.set()
    finish(threads)

    assert log.index("a1 ends") < log.index("a2 begins")
    assert sorted(log) == ["a1 begins", "a1 ends", "a2 begins", "a2 ends", "b1 begins", "b1 ends"]


def test_more_jobs_than_threads_wait_and_a_probe_does_not(threads: SessionThreads) -> None:
    log: list[str] = []
    jobs = {name: Meeting(threads, log, name) for name in "abc"}
    probe = Meeting(threads, log, "probe")

    with threads.lock:
        for name, job in jobs.items():
            threads.submit(name, job)
        threads.submit_probe("probe 1", probe)
    assert probe.began.wait(WAIT_S)
    assert jobs["b"].began.wait(WAIT_S)
    assert not jobs["c"].began.is_set(), "two threads are there"
    jobs["a"].leave.set()
    assert jobs["c"].began.wait(WAIT_S)
    for job in (*jobs.values(), probe):
        job.leave.set()
    finish(threads)


def test_an_open_waits_for_no_session(threads: SessionThreads) -> None:
    log: list[str] = []
    jobs = {name: Meeting(threads, log, name) for name in "abc"}
    opening = Meeting(threads, log, "open")

    with threads.lock:
        for name, job in jobs.items():
            threads.submit(name, job, "env")
        threads.submit_open("open 1", opening, "env")

    assert opening.began.wait(WAIT_S), "both of the sessions' threads wait, and a third session is in line"
    for job in (*jobs.values(), opening):
        job.leave.set()
    finish(threads)


def test_threads_come_with_the_sessions_that_wait_as_far_as_their_environment_allows() -> None:
    threads = SessionThreads(200, Silent(), {"small": 3})
    log: list[str] = []
    wide = [Meeting(threads, log, f"wide{number}") for number in range(100)]
    small = [Meeting(threads, log, f"small{number}") for number in range(4)]

    with threads.lock:
        for number, job in enumerate(wide):
            threads.submit(f"w{number}", job, "wide")
        for number, job in enumerate(small):
            threads.submit(f"s{number}", job, "small")

    assert all(job.began.wait(WAIT_S) for job in (*wide, *small[:3])), "a hundred wait at once"
    assert not small[3].began.is_set()
    for job in (*wide, *small):
        job.leave.set()
    finish(threads)


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("session-")}


def test_idle_threads_end_and_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads_module, "IDLE_S", 0.05)
    threads = SessionThreads(8, Silent())
    before = names()
    for _ in range(2):
        done = [threading.Event() for _ in range(8)]
        with threads.lock:
            for number, event in enumerate(done):
                threads.submit(str(number), event.set)
        assert all(event.wait(WAIT_S) for event in done)
        deadline = time.monotonic() + WAIT_S
        while len(names()) > len(before):
            assert time.monotonic() < deadline, "they were idle for longer than they may"
            time.sleep(0.01)


def test_where_the_system_gives_no_more_threads_the_jobs_wait_for_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = SessionThreads(8, Silent())
    first, second = Meeting(threads, [], "a"), threading.Event()
    with threads.lock:
        threads.submit("a", first)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with threads.lock:
        threads.submit("b", second.set)
    first.leave.set()

    assert second.wait(WAIT_S)
    finish(threads)


def test_job_that_raises_is_logged_and_the_next_one_runs(
    threads: SessionThreads, capsys: pytest.CaptureFixture[str]
) -> None:
    done = threading.Event()

    def fail() -> None:
        raise SystemExit(3)

    with threads.lock:
        threads.submit("a", fail)
        threads.submit("a", done.set)

    assert done.wait(WAIT_S)
    finish(threads)
    assert "job.failed" in "".join(capsys.readouterr())


def test_what_is_dropped_is_not_run_and_what_runs_ends(threads: SessionThreads) -> None:
    log: list[str] = []
    jobs = [Meeting(threads, log, name) for name in ("a1", "a2", "b1", "c1")]
    with threads.lock:
        for job, session_id in zip(jobs, ("a", "a", "b", "c"), strict=True):
            threads.submit(session_id, job)
    assert jobs[0].began.wait(WAIT_S)
    assert jobs[2].began.wait(WAIT_S)

    with threads.lock:
        threads.drop()
        assert threads.busy("a")
        assert not threads.busy("c")
        threads.submit("a", lambda: log.append("closed"))
    jobs[0].leave.set()
    jobs[2].leave.set()
    finish(threads)

    assert [line for line in log if line[0] in "ac"] == ["a1 begins", "a1 ends", "closed"]


def test_loop_is_woken_once_for_many_jobs(threads: SessionThreads) -> None:
    for _ in range(3):
        with threads.lock:
            for name in "abcdef":
                threads.submit(name, lambda: None)
        finish(threads)
        with threads.lock:  # the last job has signalled by now
            pass

        threads.woken()
        assert select.select([threads.wake_fd], [], [], 0)[0] == []


def seen(shared: mmap.mmap) -> Progress:
    return Progress(*PROGRESS.unpack_from(shared, 0))


def in_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    monotonic = __call__
    thread_time = time.thread_time

    def advance(self, seconds: float) -> None:
        self.now += seconds


def test_front_is_told_of_the_oldest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ThreadedProgress(shared, ("first", "second"))

    with ThreadPoolExecutor(1) as old, ThreadPoolExecutor(1) as young:
        old.submit(progress.working_on, 7).result()
        assert seen(shared)[:3] == (0, 0, 0), "it has called no environment yet"
        old.submit(progress.beat, "second").result()
        clock.advance(1)
        young.submit(progress.working_on, 8).result()
        young.submit(progress.beat, "first").result()
        assert seen(shared)[:3] == (7, 2, 1)
        assert seen(shared).since_us == 100_000_000
        clock.advance(1)
        old.submit(progress.beat, "second").result()
        assert seen(shared)[:3] == (8, 3, 0), "each call of an environment counts by itself"
        assert seen(shared).since_us == 101_000_000
        old.submit(progress.returned).result()
        young.submit(progress.returned).result()
        assert (seen(shared).number, seen(shared).since_us) == (0, 0)


def test_processor_time_of_threads_makes_a_shard_busy_and_waiting_does_not() -> None:
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ThreadedProgress(shared, ("env",))

    def work(seconds: float, wait: Callable[[float], None]) -> None:
        progress.beat("env")
        wait(seconds)
        progress.returned()

    def burn(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    in_thread(lambda: work(0.05, time.sleep))
    assert seen(shared).busy_us < 30_000
    in_thread(lambda: work(0.05, burn))
    assert seen(shared).busy_us >= 50_000


def test_call_that_was_given_up_is_told_no_more() -> None:
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ThreadedProgress(shared, ("env",))
    with ThreadPoolExecutor(1) as stuck, ThreadPoolExecutor(1) as other:
        for pool, number in ((stuck, 1), (other, 2)):
            pool.submit(progress.working_on, number).result()
            pool.submit(progress.beat, "env").result()
        assert seen(shared).number == 1

        progress.abandon(1)
        assert seen(shared).number == 2
        stuck.submit(progress.beat, "env").result()
        other.submit(progress.working_on, 0).result()
        assert (seen(shared).number, seen(shared).since_us) == (0, 0)
        stuck.submit(progress.working_on, 0).result()
        stuck.submit(progress.working_on, 3).result()
        stuck.submit(progress.beat, "env").result()
        assert seen(shared).number == 3, "its thread works for others again"


def test_session_whose_job_is_stuck_gives_its_thread_to_others(threads: SessionThreads) -> None:
    log: list[str] = []
    stuck = [Meeting(threads, log, name) for name in ("one", "two")]
    with threads.lock:
        for number, job in enumerate(stuck):
            threads.submit(str(number), job)
        threads.submit("0", lambda: log.append("behind"))
        threads.submit("2", lambda: log.append("other"))
    for job in stuck:
        assert job.began.wait(WAIT_S)
    assert "other" not in log, "both threads are taken"

    with threads.lock:
        left = threads.abandon("0", lambda: log.append("heeded"))
        assert len(left) == 1
        assert log[-1] == "heeded"
        assert not threads.busy("0")
        threads.submit("3", lambda: log.append("another"))
    stuck[1].leave.set()
    finish(threads)
    assert {"other", "another"} <= set(log)
    stuck[0].leave.set()


def test_shard_without_threads_tells_no_moment() -> None:
    shared = mmap.mmap(-1, PROGRESS.size)
    progress = ShardProgress(shared, ("env",))
    progress.working_on(3)
    progress.beat("env")
    progress.worked(0.5)

    assert seen(shared) == Progress(3, 1, 0, 500_000, 0)


class Worker:
    """The face of a shard's process."""

    now = Progress(0, 0, 0, 0)

    def progress(self) -> Progress:
        return self.now

    def kill(self) -> None:
        raise AssertionError


def test_old_call_hangs_although_its_neighbours_make_progress() -> None:
    seat, worker = Seat(0), Worker()
    process: Any = worker
    seat.occupy(process, 0.0)
    seat.pending[7] = Pending(lambda _: None, "", 0)
    for second in range(1, 11):
        worker.now = Progress(7, second, 0, 0, 1_000_000)
        seat.look(float(second))
        seat.progress_at = float(second)  # as after each report
        assert not seat.hangs(float(second), 10.0)
    assert seat.busy < 0.1, "to wait is not to be busy"

    worker.now = Progress(7, 99, 0, 0, 1_000_000)
    seat.look(11.1)
    assert seat.hangs(11.1, 10.0)
    seat.pending.clear()
    assert not seat.hangs(11.1, 10.0), "nobody waits for it"


def test_call_in_a_thread_is_given_up_and_the_shard_has_to_heed_it() -> None:
    seat, worker = Seat(0), Worker()
    process: Any = worker
    seat.occupy(process, 0.0)
    for number in (7, 8):
        seat.pending[number] = Pending(lambda _: None, f"session {number}", 0)
    worker.now = Progress(7, 1, 0, 0, 1_000_000)
    seat.look(12.0)

    call = seat.give_up(12.0, 2, 5.0)
    assert call is not None
    assert call.session_id == "session 7"
    assert list(seat.pending) == [8]
    assert seat.heeds(16.9)
    assert not seat.heeds(17.1), "it is still told as the oldest: the shard itself hangs"
    worker.now = Progress(8, 2, 0, 0, 2_000_000)
    seat.look(13.0)
    assert not seat.heeds(13.0)
    seat.stuck = 2
    assert seat.give_up(13.0, 2, 5.0) is None, "too many threads are stuck"
    seat.stuck = 0
    worker.now = Progress(8, 2, 0, 0, 0)
    seat.look(14.0)
    assert seat.give_up(14.0, 2, 5.0) is None, "it is no call of a thread"


class Host:
    """Sessions of the waiting environment, called from the test's own thread as from a session's."""

    def __init__(self, **limited: Any) -> None:
        self.clock = Clock()
        self.threads = SessionThreads(4, Silent())
        tasks = Waiting.task_source(None)
        self.entry = Entry(kind=Waiting, tasks=tasks, spec=Waiting.spec(tasks))
        limits = Limits(1000, lambda _: None, threads=self.threads, **limited)
        self.sessions = Sessions(
            "p", {"waiting": self.entry}, limits, lease_s=60, expert_splits=("train",), clock=self.clock
        )

    def call(self, op: str, session_id: str = "", **body: Any) -> Any:
        with self.threads.lock:
            return self.sessions.handle(op, session_id, body)

    def open(self, **fields: Any) -> str:
        session_id: str = self.call("open", env="waiting", task_index=0, **fields)["session_id"]
        return session_id

    def reap(self) -> float | None:
        with self.threads.lock:
            return self.sessions.reap()

    def settle(self) -> None:
        deadline = time.monotonic() + WAIT_S
        self.threads.wait_idle(lambda: time.monotonic() > deadline)
        with self.threads.lock:
            assert len(self.threads._lines) == 0

    def tally(self) -> Tally:
        return self.sessions.take_tallies()["waiting"]


@pytest.fixture
def closings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What sessions had done when they were closed."""
    path = tmp_path / "closed"
    monkeypatch.setattr(Waiting, "options", Waiting.options.model_copy(update={"closed": path}))
    return lambda: path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def host(closings: Callable[[], list[str]]) -> Iterator[Host]:
    del closings
    host = Host()
    yield host
    host.settle()


def test_lease_does_not_run_out_under_a_call(host: Host, closings: Callable[[], list[str]]) -> None:
    session_id = host.open()
    call = Meeting(host.threads, [], "call")
    with host.threads.lock:
        host.threads.submit(session_id, call)
    assert call.began.wait(WAIT_S)

    host.clock.advance(61)
    assert host.reap() == pytest.approx(0.1), "looked at again soon"
    assert len(host.sessions) == 1
    call.leave.set()
    host.settle()
    host.clock.advance(0.11)
    host.reap()
    host.settle()

    assert closings() == [""]
    assert len(host.sessions) == 0
    assert host.tally().reaped == 1
    with pytest.raises(UnknownSession):
        host.call("step", session_id, index=0, action="go")


def test_session_that_is_called_before_it_could_be_reaped_is_kept(host: Host) -> None:
    session_id = host.open()
    host.clock.advance(61)
    with host.threads.lock:
        host.sessions.reap()  # its thread has to wait for the lock
        host.sessions.handle("lease", session_id, {"lease_s": 100})
    host.settle()

    assert host.call("step", session_id, index=0, action="go")["index"] == 0
    host.clock.advance(101)
    host.reap()
    host.settle()
    assert len(host.sessions) == 0


def test_session_over_its_age_is_closed_in_a_thread(closings: Callable[[], list[str]]) -> None:
    host = Host(session_wall_s=50)
    session_id = host.open()
    host.clock.advance(51)
    host.reap()
    host.settle()

    with pytest.raises(SessionLimit):
        host.call("step", session_id, index=0, action="go")
    assert closings() == [""]


def test_processor_time_of_a_thread_is_counted_for_its_session() -> None:
    host = Host(session_cpu_s=0.05)
    greedy, patient = host.open(), host.open()

    host.call("step", patient, index=0, action="sleep 0.1")
    with pytest.raises(SessionLimit):
        host.call("step", greedy, index=0, action="burn 0.06")


def test_trace_of_a_call_is_its_own_after_others_were_made_meanwhile(threads: SessionThreads) -> None:
    limits = Limits(1000, lambda _: None, threads=threads)
    with threads.lock:
        limits.trace = "ours"
        limits.apart(lambda: setattr(limits, "trace", "another's"))

        assert limits.trace == "ours"


def test_dead_engine_loses_its_session_alone_and_for_good(
    host: Host, closings: Callable[[], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    lost, other = host.open(), host.open()
    host.call("step", lost, index=0, action="go")

    for index, action in ((1, "lose"), (1, "lose"), (0, "go")):
        with pytest.raises(SessionLost, match="the engine of waiting died") as caught:
            host.call("step", lost, index=index, action=action)
        assert caught.value.extensions["session_id"] == lost
        assert caught.value.status == 410
        assert "is gone" not in str(caught.value.problem()), "the reason is for the log"

    assert host.call("step", other, index=0, action="go")["observation"] == "go"
    assert closings() == ["go"], "it was closed once"
    tally = host.tally()
    assert (tally.engines_lost, tally.failures, tally.open) == (1, 0, {"": 1})
    (line,) = [line for line in "".join(capsys.readouterr()).splitlines() if "environment.engine_lost" in line]
    assert "the engine is gone" in line
    assert lost in line


@pytest.mark.parametrize(("op", "body"), [("expert", {}), ("fork", {"count": 2})])
def test_engine_found_dead_by_any_call(host: Host, op: str, body: dict[str, Any]) -> None:
    session_id = host.open()
    host.call("step", session_id, index=0, action="lost")

    for _ in range(2):
        with pytest.raises(SessionLost):
            host.call(op, session_id, **body)

    assert host.tally().engines_lost == 1


def test_engine_that_does_not_start_opens_no_session(host: Host, closings: Callable[[], list[str]]) -> None:
    with pytest.raises(ShardUnavailable, match="try again"):
        host.open(seed=66)
    with pytest.raises(EnvironmentFailed):
        host.open(seed=67)

    tally = host.tally()
    assert (tally.engines_lost, tally.failures, len(host.sessions)) == (1, 1, 0)
    assert closings() == ["", ""], "what the failed ones held is released"


def test_engines_lost_are_a_metric() -> None:
    metrics = SessionMetrics(("waiting",))
    metrics.add(0, {"waiting": Tally(buckets=[0] * 13, engines_lost=2)})
    metrics.add(0, {"waiting": Tally(buckets=[0] * 13, engines_lost=1)})

    values = {s.name: s.value for metric in metrics.collect() for s in metric.samples if not s.labels.get("le")}
    assert values["gymfleet_env_engines_lost_total"] == 3


def test_probe_leaves_waiting_environments_to_its_other_half(host: Host, closings: Callable[[], list[str]]) -> None:
    host.call(PROBE)
    assert closings() == []

    host.call(PROBE_WAITING)
    assert closings() == [""]


def test_end_closes_what_is_open_behind_what_is_running(host: Host, closings: Callable[[], list[str]]) -> None:
    running, idle = host.open(), host.open()
    host.call("step", idle, index=0, action="idle")
    call = Meeting(host.threads, [], "call")
    with host.threads.lock:
        host.threads.submit(running, call)
    assert call.began.wait(WAIT_S)

    with host.threads.lock:
        host.sessions.close_all(lambda: False)
    deadline = time.monotonic() + WAIT_S
    while closings() != ["idle"]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    call.leave.set()
    host.settle()

    assert closings() == ["idle", ""]


def test_end_that_is_late_closes_nothing_more(host: Host, closings: Callable[[], list[str]]) -> None:
    host.open()

    with host.threads.lock:
        host.sessions.close_all(lambda: True)
    host.settle()

    assert closings() == []
