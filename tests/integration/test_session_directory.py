"""Where sessions live: the gateway's directory and its recovery, on a real Redis, with replicas that only fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import structlog
from gymfleet_contracts import problems
from gymfleet_contracts.frames import Op, RawReply
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import Capabilities, EnvironmentSpec
from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.journal import Journal, JournaledStep, JournalEntries, JournalHeader, SessionLocation, digest
from gymfleet_env_gateway.metrics import RECOVERY_SECONDS, UNJOURNALED
from gymfleet_env_gateway.recovery import Caller
from gymfleet_env_gateway.replica_registry import ReplicaRegistry
from gymfleet_env_gateway.session_directory import SessionDirectory, SessionElsewhere
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_kit.session_problems import SessionLost, UnknownSession
from gymfleet_kit.streams import RedisClient

HERE, THERE = SessionLocation("replica-a", "upstream-1"), SessionLocation("replica-b", "upstream-2")
SESSION = {
    "task": {"env": "maze", "split": "train", "level": "small", "task_id": "small.train.0", "seed": 7},
    "lease_s": 30.0,
    "observation": "the first observation",
}
RESULT = {"observation": "next", "reward": 0.0, "terminated": False, "truncated": False}
AS_BEFORE: dict[Op, tuple[dict[str, Any], str]] = {
    Op.OPEN: (SESSION | {"session_id": "anew"}, "at first"), Op.STEP: (RESULT, "then"),
}  # fmt: skip
CALLER = Caller("somebody", index=None, stepping=False)
DEAD = SessionElsewhere()


def gone(kind: str = problems.UNKNOWN_SESSION) -> SessionElsewhere:
    return SessionElsewhere(Problem(type=kind, title="no such session", status=404))


def _nothing(*_: Any) -> None:
    pass


class Registry:
    """What is known of two environments, and replicas whose every answer is the same."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.num_replicas = 0
        self.opening = msgspec.Raw()
        self.answer: Callable[[Op], RawReply] = lambda _: RawReply(0)

    def spec(self, env: str) -> EnvironmentSpec | None:
        if env not in ("maze", "dice"):
            return None
        return EnvironmentSpec(
            name=env, version="1", summary="", instructions="", max_turns=9, levels=("small",), default_level="small",
            splits={}, capabilities=Capabilities(deterministic=env == "maze", irreversible=True),
        )  # fmt: skip

    def environment(self, env: str) -> EnvironmentSpec:
        spec = self.spec(env)
        assert spec is not None
        return spec

    def find(self, _key: str) -> None:
        return None

    def takers(self, _env: str) -> list[Any]:
        channel = SimpleNamespace(request=self._request)
        return [
            SimpleNamespace(key=f"r{n}", url="", channel=channel, opened=_nothing, ended=_nothing)
            for n in range(self.num_replicas)
        ]

    async def wait_for_news(self, _timeout_s: float) -> None:
        await asyncio.sleep(0.01)

    async def _request(self, op: Op, _: str, body: msgspec.Raw, **__: Any) -> tuple[RawReply, float]:
        self.num_asked += 1
        if op is Op.OPEN:
            self.opening = body
        return self.answer(op), 0.0


@pytest.fixture
async def journal(redis: RedisClient) -> AsyncIterator[Journal]:
    opened = Journal(redis, timeout_s=5.0)
    await opened.start()
    yield opened
    await opened.aclose()


@pytest.fixture
def registry() -> Registry:
    return Registry()


def directory_of(registry: Registry, journal: Journal | None, **settings: Any) -> SessionDirectory:
    given = GatewaySettings.model_validate({"replicas": ["http://127.0.0.1:1"], "secret": "s" * 32, **settings})
    return SessionDirectory(cast("ReplicaRegistry", registry), journal, given)


@pytest.fixture
def directory(registry: Registry, journal: Journal) -> SessionDirectory:
    return directory_of(registry, journal)


async def begin(directory: SessionDirectory) -> None:
    await directory.begin("s", HERE, SESSION, RawReply(0), state_keys=False)


async def step(directory: SessionDirectory, env: str = "maze", session_id: str = "s") -> None:
    body = msgspec.Raw(msgspec.msgpack.encode({"index": 0, "action": "up"}))
    await directory.stepped(session_id, env, HERE, body, packed(RESULT, ""))


async def played(directory: SessionDirectory) -> None:
    """Begin a session, and take a step."""
    await directory.begin("s", HERE, SESSION, packed({}, "at first"), state_keys=False)
    await directory.stepped("s", "maze", HERE, packed({"index": 0, "action": "up"}, "").ok, packed(RESULT, "then"))


async def test_nothing_that_an_old_home_says_counts(directory: SessionDirectory, journal: Journal) -> None:
    await begin(directory)
    calls: list[Callable[[], Awaitable[None]]] = [
        lambda: step(directory),
        lambda: directory.forked("s", "maze", HERE, []),
        lambda: directory.record_lease("s", "maze", HERE, 30.0),
        lambda: directory.seal("s", "maze", HERE),
    ]
    for call in calls[:-1]:  # what is sealed is moved nowhere
        await call()
    assert not await directory.has_moved("s", "maze", HERE)

    await journal.move("s", HERE, THERE)

    for call in calls:
        with pytest.raises(SessionElsewhere):
            await call()
    assert await directory.has_moved("s", "maze", HERE)


async def test_steps_without_a_journal_are_counted_and_others_are_not(directory: SessionDirectory) -> None:
    await begin(directory)
    before = UNJOURNALED._value.get()

    await step(directory)
    assert UNJOURNALED._value.get() == before
    await step(directory, session_id="another")
    assert UNJOURNALED._value.get() == before + 1
    await step(directory, env="dice")
    assert UNJOURNALED._value.get() == before + 1, "nobody expects one of it"


async def test_why_a_session_is_lost_for_good(directory: SessionDirectory, registry: Registry) -> None:
    with pytest.raises(SessionLost, match="dice is not deterministic: it cannot be replayed"):
        await directory.seek("s", "dice", CALLER, HERE, DEAD)
    with pytest.raises(SessionLost, match="this gateway keeps no journal"):
        await directory_of(registry, None).seek("s", "maze", CALLER, HERE, DEAD)
    with pytest.raises(UnknownSession):
        await directory.seek("s", "dice", CALLER, HERE, gone())
    with pytest.raises(SessionLost, match="there is no journal to replay it from"):
        await directory.seek("s", "maze", CALLER, HERE, DEAD)


async def test_a_session_that_its_replica_does_not_know_is_where_the_journal_says(
    directory: SessionDirectory, journal: Journal
) -> None:
    await begin(directory)
    await journal.move("s", HERE, THERE)

    assert await directory.seek("s", "maze", CALLER, HERE, gone()) == THERE
    assert directory.of("s", cast("Any", SimpleNamespace(replica="x", upstream="y"))) == THERE
    with pytest.raises(UnknownSession):
        await directory.seek("s", "maze", CALLER, THERE, gone())
    assert await journal.read("s") is None, "it is over, and nothing is left of it"


async def test_a_replay_that_shows_the_same_is_where_the_session_lives(
    directory: SessionDirectory, registry: Registry, journal: Journal
) -> None:
    await played(directory)
    registry.num_replicas, registry.answer = 1, lambda op: packed(*AS_BEFORE.get(op, ({}, "")))

    with structlog.testing.capture_logs() as lines:
        found = await directory.seek("s", "maze", CALLER, HERE, DEAD)

    assert found == SessionLocation("r0", "anew") == await journal.location("s")
    (line,) = [line for line in lines if line["event"] == "session.recovered"]
    assert (line["env"], line["steps"]) == ("maze", 1)
    assert 0 <= line["took_s"] < 5


def packed(answer: dict[str, Any], state: str) -> RawReply:
    return RawReply(0, ok=msgspec.Raw(msgspec.msgpack.encode(answer)), state=state)


async def test_a_replayed_session_has_the_lease_that_it_had_last(
    directory: SessionDirectory, registry: Registry
) -> None:
    await played(directory)
    await directory.record_lease("s", "maze", HERE, 900.0)
    registry.num_replicas, registry.answer = 1, lambda op: packed(*AS_BEFORE.get(op, ({}, "")))

    await directory.seek("s", "maze", CALLER, HERE, DEAD)

    assert msgspec.msgpack.decode(registry.opening)["lease_s"] == 900.0, "its caller relies on it"


@pytest.mark.parametrize("seen", [*"abcdef", ""])
@pytest.mark.parametrize("part", ["observation", "state"])
@pytest.mark.parametrize(("at", "where"), [(Op.OPEN, "its beginning"), (Op.STEP, "step 0")])
async def test_a_replay_that_shows_anything_else_is_no_recovery(
    directory: SessionDirectory, registry: Registry, at: Op, where: str, part: str, seen: str
) -> None:
    """Whether its digest comes before that of the journal or after."""
    await played(directory)

    def answer(op: Op) -> RawReply:
        told, state = AS_BEFORE.get(op, ({}, ""))
        if op is not at:
            return packed(told, state)
        return packed(told | {part: seen}, state) if part == "observation" else packed(told, seen)

    registry.num_replicas, registry.answer = 1, answer

    with pytest.raises(SessionLost, match=f"the replay of its episode led elsewhere at {where}"):
        await directory.seek("s", "maze", CALLER, HERE, DEAD)


def killing(_: Op) -> RawReply:
    problem = {"type": problems.SESSION_LOST, "title": "", "status": 500, problems.IN_WORK: True}
    return RawReply(0, problem=msgspec.Raw(msgspec.msgpack.encode(problem)))


@pytest.mark.parametrize(("problem", "told"), [({"detail": "no such task"}, "no such task"), ({}, "refused")])
async def test_a_replica_that_refuses_a_replay_says_why(
    directory: SessionDirectory, registry: Registry, problem: dict[str, str], told: str
) -> None:
    await begin(directory)
    refusal = {"type": "about:blank", "title": "refused", "status": 422, **problem}
    registry.num_replicas = 2
    registry.answer = lambda _: RawReply(0, problem=msgspec.Raw(msgspec.msgpack.encode(refusal)))

    with pytest.raises(SessionLost, match=f"it could not be replayed: {told}"):
        await directory.seek("s", "maze", CALLER, HERE, DEAD)
    assert registry.num_asked == 1, "another would refuse it too"


async def test_a_session_kills_two_processes_and_no_third(directory: SessionDirectory, registry: Registry) -> None:
    await begin(directory)
    registry.num_replicas, registry.answer = 5, killing

    with pytest.raises(SessionLost, match="2 of its own calls in a row ended what it needs"):
        await directory.seek("s", "maze", CALLER, HERE, DEAD)

    assert registry.num_asked == 2


async def test_a_gateway_that_stops_leaves_its_recoveries(registry: Registry, journal: Journal) -> None:
    directory = directory_of(registry, journal)
    await begin(directory)
    seeking = asyncio.create_task(directory.seek("s", "maze", CALLER, HERE, DEAD))
    await asyncio.sleep(0.1)
    assert not seeking.done(), "no replica has room"

    await directory.aclose()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(seeking, 5)
    await directory_of(registry, None).aclose()


async def test_a_recovery_without_room_ends_in_time(registry: Registry, journal: Journal) -> None:
    directory = directory_of(registry, journal, recovery_timeout_s=0.2)
    await begin(directory)

    before = RECOVERY_SECONDS.labels("maze")._sum.get()
    with pytest.raises(Unavailable, match=r"no replica could take the session over within 0\.2 s"):
        await directory.seek("s", "maze", CALLER, HERE, DEAD)
    assert 0.2 <= RECOVERY_SECONDS.labels("maze")._sum.get() - before < 0.9


@pytest.mark.parametrize("played", [3, 300])
@pytest.mark.parametrize(
    ("ahead", "stepping", "vouched", "agrees"),
    [
        (0, False, False, True),
        (0, True, False, True),
        (-1, True, False, True),
        (-1, False, False, False),
        (-1, False, True, True),
        (1, False, True, False),
        (None, False, False, False),
        (None, True, True, True),
    ],
)
def test_what_shows_that_a_journal_is_complete(
    played: int, ahead: int | None, stepping: bool, vouched: bool, agrees: bool
) -> None:
    steps = [JournaledStep("up", digest("up"), 0.0, over=False)] * played
    header = JournalHeader("maze", "train", "small", "small.train.0", 7, 30.0, digest("the first observation"))
    story = JournalEntries(HERE, header, steps, vouched_for=vouched)
    index = None if ahead is None else int(str(played + ahead))

    assert Caller("somebody", index, stepping).agrees_with(story) is agrees


def test_irreversible_steps_are_guarded_where_they_could_be_replayed(
    directory: SessionDirectory, registry: Registry
) -> None:
    assert directory.guards("maze")
    assert not directory.guards("dice")
    assert not directory.guards("nothing")
    assert not directory_of(registry, None).guards("maze")
