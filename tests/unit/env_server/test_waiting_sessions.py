"""Sessions whose calls are made in threads: their leases, their limits, and engines that die."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.metrics import SessionMetrics
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.sessions import PROBE, PROBE_WAITING, Sessions
from gymfleet_env_server.shards.channel import Tally
from gymfleet_env_server.shards.threads import SessionThreads
from gymfleet_kit.session_problems import EnvironmentFailed, SessionLimit, SessionLost, UnknownSession

from tests.fixtures.waiting_environment import Waiting
from tests.unit.env_server.test_progress import Clock
from tests.unit.env_server.test_threads import WAIT_S, Meeting, Silent, threads

__all__ = ["threads"]  # a fixture


class Host:
    """Sessions of the waiting environment, called from the test's own thread as from a session's."""

    def __init__(self, **limited: Any) -> None:
        self.clock = Clock()
        self.threads = SessionThreads(4, Silent())
        tasks = Waiting.task_source(None)
        self.entry = Entry(kind=Waiting, tasks=tasks, spec=Waiting.spec(tasks))
        limits = Limits(1000, lambda *_: None, threads=self.threads, **limited)
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
        return self.sessions.counts.take()["waiting"]


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
    limits = Limits(1000, lambda *_: None, threads=threads)
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
