"""A shard's sessions without a process around them: leases by a clock of our own, failures, forks."""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from gymfleet_contracts.session import ForkSupport
from gymfleet_envs.runtime.catalogue import Entry
from gymfleet_envs.runtime.environment import Outcome
from gymfleet_envs.runtime.episode import CUT_MARK, Limits
from gymfleet_envs.runtime.sessions import Sessions
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import (
    EnvironmentFailed,
    EpisodeOver,
    ForkUnsupported,
    InvalidRequest,
    StepOutOfOrder,
    UnknownEnvironment,
    UnknownSession,
)

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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Host:
    """Sessions of three environments and their clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.beats = 0
        entries = {}
        for kind in (Troublesome, Unstable, Unforkable):
            tasks = kind.task_source(None)
            entries[kind.name] = Entry(kind=kind, tasks=tasks, spec=kind.spec(tasks))
        limits = Limits(1000, self.beat)
        self.sessions = Sessions("p", entries, limits, lease_s=60, expert_splits=("train",), clock=self.clock)

    def beat(self) -> None:
        self.beats += 1

    def open(self, **fields: Any) -> str:
        body = {"env": "troublesome", "task_index": 0, **fields}
        session_id: str = self.sessions.handle("open", "", body)["session_id"]
        return session_id

    def step(self, session_id: str, index: int, action: str = "go") -> dict[str, Any]:
        result: dict[str, Any] = self.sessions.handle("step", session_id, {"index": index, "action": action})
        return result


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
    assert host.sessions.take_tallies()["troublesome"].reaped == 1


def test_looking_does_not_renew_and_a_waiting_call_does(host: Host) -> None:
    looked_at, waited_for = host.open(), host.open()

    host.clock.now += 59
    assert host.sessions.handle("get", looked_at, {})["expires_in_s"] == pytest.approx(1)
    host.sessions.touch(waited_for)
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

    assert host.step(session_id, 0, "b") == first
    assert host.beats == beats, "the environment was not called"
    with pytest.raises(StepOutOfOrder) as caught:
        host.step(session_id, 2)
    assert caught.value.extensions == {"expected": 1}
    assert host.step(session_id, 1, "c")["observation"] == "step 2: c"
    with pytest.raises(StepOutOfOrder):
        host.step(session_id, 0)


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
    assert host.sessions.take_tallies()["troublesome"].failures == 1


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
    assert host.step(first, 2, "again") == last, "the last result is stored in the child as well"
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

    tally = host.sessions.take_tallies()["troublesome"]

    assert (tally.opened, tally.open, tally.steps, sum(tally.buckets)) == (1, 1, 1, 1)
    assert not host.sessions.has_news
    host.sessions.handle("close", session_id, {})
    assert host.sessions.take_tallies()["troublesome"].open == 0
