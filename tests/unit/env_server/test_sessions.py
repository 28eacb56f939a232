"""A shard's sessions without a process around them: leases by a clock of our own, failures, forks."""

import contextlib
import gc
import signal
import time
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from gymfleet_contracts.session import ExpertMove, ForkSupport
from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.observation import CUT_MARK
from gymfleet_env_server.sessions.sessions import Sessions
from gymfleet_env_server.shards.channel import Call, Tally
from gymfleet_envs.environment import Outcome
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import (
    EnvironmentFailed,
    EpisodeOver,
    ExpertUnavailable,
    ForkUnsupported,
    InvalidRequest,
    SessionLimit,
    StepOutOfOrder,
    UnknownEnvironment,
    UnknownSession,
)
from msgspec import Raw

from tests.conformance.troublesome_env import Troublesome


class Unstable(Troublesome):
    """Never shows the same twice, so that a replay cannot be trusted."""

    name: ClassVar[str] = "unstable"
    shown: ClassVar[Iterator[int]] = iter(range(1000))

    def step(self, action: str) -> Outcome:
        return Outcome(f"{action} {next(self.shown)}")


class Unforkable(Troublesome):
    name: ClassVar[str] = "unforkable"
    fork: ClassVar[ForkSupport] = ForkSupport.NONE


class Endless(Troublesome):
    """Its expert never ends, and lets no exception out."""

    name: ClassVar[str] = "endless"
    asked: ClassVar[int] = 0

    def expert(self) -> ExpertMove:
        type(self).asked += 1
        while True:
            with contextlib.suppress(Exception):
                time.sleep(0.001)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Host:
    """Sessions of some environments and their clock."""

    def __init__(self, *, session_cpu_s: float | None = None, session_wall_s: float | None = None) -> None:
        self.clock = Clock()
        self.cpu_clock = Clock()
        self.beats = 0
        entries = {}
        for kind in (Troublesome, Unstable, Unforkable, Endless):
            tasks = kind.task_source(None)
            entries[kind.name] = Entry(kind=kind, tasks=tasks, spec=kind.spec(tasks))
        limits = Limits(
            1000,
            self.beat,
            cpu_clock=self.cpu_clock,
            session_cpu_s=session_cpu_s,
            session_wall_s=session_wall_s,
            expert_s=0.02,
        )
        self.sessions = Sessions("p", entries, limits, lease_s=60, expert_splits=("train",), clock=self.clock)

    def beat(self, env: str, limit_s: float) -> None:
        assert env in ("troublesome", "unstable", "unforkable", "endless")
        self.beats += 1

    def open(self, **fields: Any) -> str:
        body = {"env": "troublesome", "task_index": 0, **fields}
        session_id: str = self.sessions.handle("open", "", body)["session_id"]
        return session_id

    def step(self, session_id: str, index: int, action: str = "go") -> dict[str, Any]:
        result: dict[str, Any] = self.sessions.handle("step", session_id, {"index": index, "action": action})
        return result

    def tally(self) -> Tally:
        return self.sessions.counts.take()["troublesome"]


@pytest.fixture
def host() -> Host:
    return Host()


def test_ids_are_unguessable_and_name_their_home(host: Host) -> None:
    first, second = host.open(), host.open()

    assert first.startswith("p-")
    assert len(first) == 2 + 32
    assert first != second


def test_lease_runs_out_after_the_last_touch(host: Host) -> None:
    session_id = host.open()

    host.clock.now += 59
    host.step(session_id, 0)
    host.clock.now += 59
    assert host.sessions.reap() == pytest.approx(1), "60 s after the step, not after the opening"
    assert len(host.sessions) == 1
    host.clock.now += 1
    assert host.sessions.reap() is None
    assert len(host.sessions) == 0
    with pytest.raises(UnknownSession):
        host.step(session_id, 1)
    assert host.sessions.counts.take()["troublesome"].reaped == 1


def test_looking_does_not_renew_and_a_waiting_call_does(host: Host) -> None:
    looked_at, waited_for = host.open(), host.open()

    host.clock.now += 59
    assert host.sessions.handle("get", looked_at, {})["expires_in_s"] == pytest.approx(1)
    host.sessions.touch([Call(1, "step", waited_for, Raw(b"")), Call(2, "get", looked_at, Raw(b""))])
    host.clock.now += 2
    host.sessions.reap()

    assert len(host.sessions) == 1
    host.step(waited_for, 0)


def test_renewed_lease_may_be_longer_or_shorter(host: Host) -> None:
    longer, shorter = host.open(), host.open()

    host.sessions.handle("lease", longer, {"lease_s": 500})
    assert host.sessions.handle("lease", shorter, {"lease_s": 5})["lease_s"] == 5
    host.clock.now += 5

    assert host.sessions.reap() is not None
    assert host.sessions.handle("get", longer, {})["expires_in_s"] == pytest.approx(495)
    with pytest.raises(UnknownSession):
        host.sessions.handle("get", shorter, {})


def test_step_is_executed_once_and_in_order(host: Host) -> None:
    session_id = host.open()
    first = host.step(session_id, 0, "a")
    beats = host.beats

    assert host.step(session_id, 0, "a") == first
    assert host.beats == beats, "the environment was not called"
    with pytest.raises(StepOutOfOrder) as caught:
        host.step(session_id, 2)
    assert caught.value.extensions == {"expected": 1}
    assert host.step(session_id, 1, "c")["observation"] == "step 2: c"
    with pytest.raises(StepOutOfOrder):
        host.step(session_id, 0)


def test_an_index_that_was_played_with_another_action_is_refused(host: Host) -> None:
    session_id = host.open(seed=3)
    first = host.step(session_id, 0, "a")
    child = host.sessions.handle("fork", session_id, {"count": 1})[0]["session_id"]
    beats = host.beats

    for played in (session_id, child):
        with pytest.raises(StepOutOfOrder) as caught:
            host.step(played, 0, "b")
        assert caught.value.extensions == {"expected": 1}
        assert host.step(played, 0, "a") == first, "the refusal changed nothing"
    assert host.beats == beats, "the environment was not called"
    for index in (1, 2):
        host.step(session_id, index, f"step {index}")
    with pytest.raises(StepOutOfOrder):
        host.step(session_id, 2, "b")
    assert host.step(session_id, 2, "step 2")["truncated"], "the last result of an episode that is over is kept"


def test_turn_limit_of_the_task_truncates(host: Host) -> None:
    session_id = host.open(seed=3)

    ends = [host.step(session_id, index)["truncated"] for index in range(3)]

    assert ends == [False, False, True]
    with pytest.raises(EpisodeOver):
        host.step(session_id, 3)


def test_winning_with_the_last_turn_is_no_truncation(host: Host) -> None:
    session_id = host.open(seed=3)
    host.step(session_id, 0)
    host.step(session_id, 1)

    last = host.step(session_id, 2, "win")

    assert (last["terminated"], last["truncated"]) == (True, False)


@pytest.mark.parametrize(
    ("action", "exception"), [("raise", "ValueError"), ("exit", "SystemExit"), ("nan", "ValueError")]
)
def test_failing_environment_closes_its_session_and_tells_no_secret(host: Host, action: str, exception: str) -> None:
    session_id, other = host.open(), host.open()

    with pytest.raises(EnvironmentFailed) as caught:
        host.step(session_id, 0, action)

    problem = caught.value.problem().model_dump()
    assert (problem["env"], problem["session_id"], problem["exception"]) == ("troublesome", session_id, exception)
    assert "secret" not in str(problem)
    assert len(host.sessions) == 1
    with pytest.raises(EnvironmentFailed):
        host.step(session_id, 0, action)
    assert host.step(other, 0)["observation"] == "step 1: go"
    assert host.sessions.counts.take()["troublesome"].failures == 1


def test_failing_reset_opens_no_session(host: Host) -> None:
    with pytest.raises(EnvironmentFailed):
        host.open(seed=666)

    assert len(host.sessions) == 0


def test_long_observation_is_cut_and_broken_text_is_mended(host: Host) -> None:
    session_id = host.open()

    assert host.step(session_id, 0, "big")["observation"] == "x" * 1000 + CUT_MARK.format(excess=99_000)
    assert host.step(session_id, 1, "surrogate")["observation"] == "bad ? text"


def test_fork_by_replay_continues_where_the_parent_stands(host: Host) -> None:
    parent = host.open()
    last = [host.step(parent, index, f"a{index}") for index in range(3)][-1]

    children = host.sessions.handle("fork", parent, {"count": 2})

    assert [(child["index"], child["observation"]) for child in children] == [(3, "step 3: a2")] * 2
    first, second = (child["session_id"] for child in children)
    assert host.step(first, 2, "a2") == last, "the last result is stored in the child as well"
    assert host.step(first, 3, "b")["observation"] == "step 4: b"
    grandchild = host.sessions.handle("fork", first, {})[0]
    assert host.step(grandchild["session_id"], 4, "c")["observation"] == "step 5: c"
    assert host.step(second, 3, "d")["observation"] == "step 4: d"
    assert host.step(parent, 3, "e")["observation"] == "step 4: e"


@pytest.mark.parametrize(("env", "why"), [("unstable", "showed something else"), ("unforkable", "neither copy nor")])
def test_fork_that_cannot_be_exact_is_refused(host: Host, env: str, why: str) -> None:
    session_id = host.open(env=env)
    host.step(session_id, 0)

    with pytest.raises(ForkUnsupported, match=why):
        host.sessions.handle("fork", session_id, {"count": 3})

    assert len(host.sessions) == 1
    host.step(session_id, 1)


@pytest.mark.parametrize(
    ("op", "body", "error"),
    [
        ("open", {"env": "nowhere", "task_index": 0}, UnknownEnvironment),
        ("open", {"env": "troublesome"}, InvalidRequest),
        ("open", [1], InvalidRequest),
        ("open", {"env": "troublesome", "task_index": 0, "x": 1}, InvalidRequest),
        ("step", {"index": 0, "action": "a"}, UnknownSession),
        ("step", None, InvalidRequest),
        ("evaluate", {}, InvalidRequest),
    ],
)
def test_bad_call_is_refused(host: Host, op: str, body: Any, error: type[ServiceError]) -> None:
    with pytest.raises(error):
        host.sessions.handle(op, "p-unknown", body)


def test_tallies_are_taken_once(host: Host) -> None:
    session_id = host.open()
    host.step(session_id, 0)
    host.step(session_id, 0)

    tally = host.sessions.counts.take()["troublesome"]

    assert (tally.opened, tally.open, tally.steps, sum(tally.buckets)) == (1, {"": 1}, 1, 1)
    assert not host.sessions.counts.has_news
    host.sessions.handle("close", session_id, {})
    assert host.sessions.counts.take()["troublesome"].open == {}


def test_sessions_are_counted_by_owner_and_forks_count_for_their_parents(host: Host) -> None:
    ann = host.open(owner="ann")
    host.open(owner="bob")
    host.open()
    host.sessions.handle("fork", ann, {"count": 3})
    assert host.tally().open == {"ann": 4, "bob": 1, "": 1}

    host.sessions.handle("close", ann, {})
    host.sessions.handle("close", ann, {})

    assert host.tally().open == {"ann": 3, "bob": 1, "": 1}
    host.clock.now += 61
    host.sessions.reap()
    assert host.tally().open == {}, "an owner without sessions is forgotten"


def test_session_that_burnt_its_processor_time_is_closed_and_says_why() -> None:
    host = Host(session_cpu_s=2)
    session_id, other = host.open(), host.open()
    spent = iter([0.0, 1.5, 1.5, 2.2])
    host.cpu_clock.__class__ = type("Ticking", (Clock,), {"__call__": lambda _: next(spent, 2.2)})

    assert host.step(session_id, 0)["index"] == 0, "1.5 s are within the limit"
    with pytest.raises(SessionLimit) as caught:
        host.step(session_id, 1)

    assert caught.value.status == 410
    assert caught.value.extensions["limit"] == "session_cpu_s"
    for _ in range(2):
        with pytest.raises(SessionLimit):
            host.step(session_id, 1)
    assert host.step(other, 0)["index"] == 0, "its neighbour has spent nothing"
    tally = host.tally()
    assert (tally.limited, tally.failures, tally.open) == (1, 0, {"": 1})


def test_session_ends_at_its_age_however_often_it_is_touched() -> None:
    host = Host(session_wall_s=100)
    called, silent = host.open(lease_s=30), host.open(lease_s=500)
    for index in range(4):
        host.clock.now += 24
        host.step(called, index)

    assert host.sessions.handle("get", called, {})["expires_in_s"] == pytest.approx(4), "not 30: its age ends it"
    host.clock.now += 4
    with pytest.raises(SessionLimit):
        host.step(called, 4)
    host.sessions.reap()

    assert len(host.sessions) == 0, "without a call as well"
    with pytest.raises(SessionLimit, match="session_wall_s = 100"):
        host.step(silent, 0)
    assert host.tally().limited == 2


def test_fork_is_as_young_as_its_opening_and_has_spent_nothing() -> None:
    host = Host(session_wall_s=100, session_cpu_s=1)
    parent = host.open(lease_s=500)
    host.clock.now += 99

    child = host.sessions.handle("fork", parent, {"count": 1})[0]["session_id"]
    host.clock.now += 2
    host.sessions.reap()

    assert host.step(child, 0)["index"] == 0


@pytest.mark.parametrize("lease_s", [1.0, 10.0, 600.0])
def test_sessions_are_reaped_within_a_tenth_of_their_lease(host: Host, lease_s: float) -> None:
    opened_at = host.clock.now
    for _ in range(50):
        host.open(lease_s=lease_s)

    while (wait_s := host.sessions.reap()) is not None:
        host.clock.now += wait_s  # as the shard sleeps

    assert len(host.sessions) == 0
    assert lease_s <= host.clock.now - opened_at <= 1.1 * lease_s


def test_failed_environment_is_released_at_once(host: Host) -> None:
    session_id = host.open()
    environment = weakref.ref(host.sessions._leases[session_id].episode._world.env)
    for _ in range(2):
        with pytest.raises(EnvironmentFailed):
            host.step(session_id, 0, "raise")

    gc.collect()

    assert environment() is None, "the remembered reason must not hold the episode's frames"


def test_closed_and_renewed_sessions_leave_nothing_behind(host: Host) -> None:
    survivor = host.open(lease_s=86_400)
    for _ in range(5000):
        host.sessions.handle("close", host.open(lease_s=86_400), {})
        host.sessions.handle("lease", survivor, {"lease_s": 86_400})

    assert len(host.sessions._leases._expiries) < 1100
    host.clock.now += 86_401
    host.sessions.reap()
    assert len(host.sessions) == 0, "and nobody was forgotten"


def test_result_that_cannot_travel_closes_the_session(host: Host) -> None:
    session_id = host.open()

    with pytest.raises(EnvironmentFailed):
        host.step(session_id, 0, "unspeakable")
    with pytest.raises(EnvironmentFailed):
        host.step(session_id, 0, "unspeakable")

    assert len(host.sessions) == 0


def test_an_expert_without_end_is_cut_off_once_and_the_session_goes_on(host: Host) -> None:
    handler = signal.getsignal(signal.SIGALRM)
    session_id = host.open(env="endless")

    for _ in range(2):
        with pytest.raises(ExpertUnavailable, match=r"the expert of endless took longer than 0\.02 s in this session"):
            host.sessions.handle("expert", session_id, None)
    (child,) = host.sessions.handle("fork", session_id, {"count": 1})
    with pytest.raises(ExpertUnavailable):
        host.sessions.handle("expert", child["session_id"], None)

    assert Endless.asked == 1, "asked again, in the session or its children, it is not tried again"
    assert host.step(session_id, 0)["observation"] == "step 1: go"
    assert signal.getsignal(signal.SIGALRM) is handler, "no alarm is left behind"


def test_an_expert_in_time_leaves_no_alarm_behind(host: Host) -> None:
    session_id = host.open()

    assert host.sessions.handle("expert", session_id, None) == {"thought": "I know.", "action": "win"}
    time.sleep(0.03)
    assert host.step(session_id, 0)["observation"] == "step 1: go"
