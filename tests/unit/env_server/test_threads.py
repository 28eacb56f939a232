"""Jobs of sessions in threads: their order, how many at once, and what is done about one that is stuck."""

import select
import threading
import time

import pytest
from gymfleet_env_server.shards import threads as threads_module
from gymfleet_env_server.shards.threads import SessionThreads

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
