"""One session's calls of models: their bounds, their record, and what a replay makes of it."""

import asyncio
import copy
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_env_server.models.answering import EndpointModel
from gymfleet_env_server.models.replies import MAX_RECORD_BYTES, AskCounts, ModelCalls, ReplayDiverged
from gymfleet_envs.environment import EngineLost, ModelFailed
from gymfleet_envs.model_calls import Messages
from gymfleet_kit.chat_endpoint import ChatEndpoint, ModelEndpoint
from gymfleet_kit.session_problems import InvalidRequest

from tests.fixtures.asking_environment import Shop, ThreadedShop
from tests.fixtures.chat_server import ChatServer, Scripted

Asking = Callable[..., str]


class Numbered:
    """Replies with its name and the number of the call, or with a text, or fails."""

    def __init__(self, name: str, reply: str | Exception | None = None) -> None:
        self.name = name
        self.given = reply
        self.asked: list[Messages] = []
        self.deadlines: list[float] = []

    async def reply(self, messages: Messages, max_tokens: int, deadline: float) -> str:
        await asyncio.sleep(0)
        self.asked.append(messages)
        self.deadlines.append(deadline)
        if isinstance(self.given, Exception):
            raise self.given
        return self.given or f"{self.name} {len(self.asked)} of {max_tokens}"


def spec(kind: type[Any] = Shop) -> EnvironmentSpec:
    return kind.spec(kind.task_source(None))  # type: ignore[no-any-return]


class Session:
    """Calls of one session; `does` is a step in which something is asked."""

    def __init__(self, kind: type[Any] = Shop, *, told: bool = True, **models: Numbered) -> None:
        self.models = {"user": Numbered("user"), "judge": Numbered("judge")} | models
        self.counts = AskCounts()
        self.calls = ModelCalls(spec(kind), self.models, told=told, counts=self.counts)

    def ask(self, text: str, role: str = "user", max_tokens: int = 10) -> str:
        return self.calls.ask_blocking(role, [{"role": "user", "content": text}], max_tokens)

    def does(self, *texts: str, recorded: bytes = b"", **given: Any) -> list[str]:
        return self.calls.during(lambda: [self.ask(text, **given) for text in texts], math.inf, recorded)


def test_replies_are_recorded_and_repeated_without_asking() -> None:
    first, again = Session(), Session()

    replies = [first.does("a", "b"), first.does(), first.does("c")]
    assert replies == [["user 1 of 10", "user 2 of 10"], [], ["user 3 of 10"]]
    first = Session()
    records = []
    for texts in (("a", "b"), (), ("c",)):
        first.does(*texts)
        records.append(first.calls.told)

    assert all(records), "that nothing was asked is a record too"
    assert len(set(records)) == 3
    played = [
        again.does(*texts, recorded=record) for texts, record in zip((("a", "b"), (), ("c",)), records, strict=True)
    ]
    assert played == replies
    assert again.models["user"].asked == []
    assert again.calls.told == records[-1]
    assert (first.counts.take(), again.counts.take()) == ((3, 0), (0, 0)), "a replay asks nobody"
    assert again.does("d") == ["user 1 of 10"], "and then goes on by itself"


@pytest.mark.parametrize(
    ("texts", "given"),
    [
        (("a", "x"), {}),
        (("b", "a"), {}),
        (("a", "b", "c"), {}),
        (("a",), {}),
        ((), {}),
        (("a", "b"), {"max_tokens": 11}),
        (("a", "b"), {"role": "judge"}),
    ],
)
def test_a_replay_that_asks_something_else_is_no_replay(texts: tuple[str, ...], given: dict[str, Any]) -> None:
    first, again = Session(), Session()
    first.does("a", "b")

    with pytest.raises(ReplayDiverged, match=r"^shop asked its models (something else|less) when its episode was"):
        again.does(*texts, recorded=first.calls.told, **given)

    assert again.models["user"].asked == again.models["judge"].asked == []


def test_who_is_not_to_be_told_is_not_told() -> None:
    session = Session(told=False)

    session.does("a")

    assert session.calls.told == b""


@pytest.mark.parametrize(
    "recorded", [b"\x01", b"\x91\x01", b"\xc1", b"\x91\x92\xc4\x01a\x01", b"\x91\x92\xc4\x01a\xa1\xff"]
)
def test_what_is_no_record_is_refused(recorded: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not recorded by an env server"):
        Session().does("a", recorded=recorded)


def test_calls_and_tokens_are_bounded_over_the_session() -> None:
    many, wordy, single = Session(), Session(), Session()

    for _ in range(4):
        many.does("a", "b")
    with pytest.raises(RuntimeError, match="user is asked more than max_calls = 8 times in the session"):
        many.does("c")
    assert len(many.models["user"].asked) == 8

    wordy.does("a", "b", max_tokens=150)
    wordy.does("a", max_tokens=100)
    with pytest.raises(RuntimeError, match="user is asked for more than max_tokens = 400 tokens in the session"):
        wordy.does("b", max_tokens=1)
    assert len(wordy.models["user"].asked) == 3

    single.does("a", role="judge")
    with pytest.raises(RuntimeError, match="judge is asked more than max_calls = 1 "):
        single.does("a", role="judge")


def test_a_replay_counts_as_much_as_the_episode_did() -> None:
    first, again = Session(), Session()
    for _ in range(4):
        first.does("a", "b")
        again.does("a", "b", recorded=first.calls.told)

    with pytest.raises(RuntimeError, match="max_calls = 8"):
        again.does("c")


def test_what_is_recorded_is_bounded() -> None:
    session = Session(user=Numbered("user", "é" * (MAX_RECORD_BYTES // 4)))

    session.does("a", "b")
    assert len(session.calls.told) < MAX_RECORD_BYTES + 100
    with pytest.raises(RuntimeError, match=f"more than {MAX_RECORD_BYTES} bytes"):
        session.does("c")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "give 1 to 4096 messages"),
        ([{"role": "user", "content": "x"}] * 4097, "give 1 to 4096 messages"),
        ([{"role": "tool", "content": "x"}], "a message is"),
        ([{"role": "user"}], "a message is"),
        ([{"role": "user", "content": "x", "name": "y"}], "a message is"),
        ([{"role": "user", "content": "x" * 600_000}] * 2, "1200000 characters"),
    ],
)
def test_messages_that_are_none(messages: Any, reason: str) -> None:
    session = Session()

    with pytest.raises(ValueError, match=reason):
        session.calls.during(lambda: session.calls.ask_blocking("user", messages, 1), 1, b"")

    assert session.models["user"].asked == []


def test_other_mistakes_of_authors() -> None:
    with pytest.raises(RuntimeError, match="for reset and step alone"):
        Session().ask("a")
    with pytest.raises(RuntimeError, match="shop declares no model 'host'; it declares user, judge"):
        Session().does("a", role="host")
    with pytest.raises(RuntimeError, match="max_tokens must be at least 1, got 0"):
        Session().does("a", max_tokens=0)


def test_half_a_character_is_no_trouble() -> None:
    session = Session()

    session.does("a\ud800")

    assert session.models["user"].asked == [[{"role": "user", "content": "a?"}]]


@pytest.mark.parametrize("failure", [ModelFailed("gone"), KeyError("x")])
def test_a_failure_ends_the_session_whatever_the_environment_makes_of_it(failure: Exception) -> None:
    session = Session(user=Numbered("user", failure))

    def swallow() -> str:
        try:
            return session.ask("a")
        except Exception:  # noqa: BLE001 - what an author must not do
            return "made up"

    with pytest.raises(type(failure)) as caught:
        session.calls.during(swallow, math.inf, b"")

    assert caught.value is failure
    assert session.counts.take() == (1, int(isinstance(failure, ModelFailed)))
    assert session.counts.take() == (0, 0)


async def test_a_call_that_is_not_awaited_is_a_mistake() -> None:
    session = Session()
    tasks = []

    def forgets() -> None:
        tasks.append(asyncio.ensure_future(session.calls.ask("user", [{"role": "user", "content": "a"}], 5)))

    async def step() -> None:
        with pytest.raises(RuntimeError, match="a call of ask was not awaited"):
            await asyncio.to_thread(session.calls.during, lambda: time.sleep(0.05), math.inf, b"")

    slow = Numbered("user")

    async def late(messages: Messages, max_tokens: int, deadline: float) -> str:
        await asyncio.sleep(0.3)
        return "late"

    slow.reply = late  # type: ignore[method-assign]
    session.models["user"] = slow
    stepping = asyncio.create_task(step())
    await asyncio.sleep(0.01)
    forgets()
    await stepping
    assert await tasks[0] == "late"
    assert session.does("b", role="judge") == ["judge 1 of 10"], "the late one is in no later record"


async def test_calls_at_once_keep_their_places() -> None:
    slow_first = Session()
    waits = iter([0.05, 0.0])

    async def reply(messages: Messages, max_tokens: int, deadline: float) -> str:
        await asyncio.sleep(next(waits))
        return f"to {messages[0]['content']}"

    slow_first.models["user"].reply = reply  # type: ignore[method-assign]

    async def both(session: Session) -> list[str]:
        asked = [session.calls.ask("user", [{"role": "user", "content": text}], 5) for text in "ab"]
        return list(await asyncio.gather(*asked))

    def step(session: Session, recorded: bytes = b"") -> list[str]:
        return session.calls.during(lambda: asyncio.run(both(session)), math.inf, recorded)

    assert await asyncio.to_thread(step, slow_first) == ["to a", "to b"]
    assert await asyncio.to_thread(step, Session(), slow_first.calls.told) == ["to a", "to b"]


def test_a_part_of_the_steps_time_is_left_for_the_step() -> None:
    session = Session()
    began = time.monotonic()

    session.calls.during(lambda: session.ask("a"), 2.0, b"")
    session.calls.during(lambda: session.ask("a"), 30.0, b"")

    short, long = (deadline - began for deadline in session.models["user"].deadlines)
    assert short == pytest.approx(1.8, abs=0.1)
    assert long == pytest.approx(29.0, abs=0.1)


def test_a_child_has_asked_what_its_parent_has() -> None:
    parent = Session(ThreadedShop)
    parent.does(*"abc")
    child = Session(ThreadedShop)
    child.calls = parent.calls.copy()

    child.does(*"de")
    parent.does(*"defgh")
    with pytest.raises(RuntimeError, match="max_calls = 8"):
        parent.does("i")
    child.does(*"fgh")

    assert [len(msgspec.msgpack.decode(record)) for record in child.calls.history] == [3, 2, 3]
    assert parent.calls.fresh().history == []
    assert copy.deepcopy(parent.calls) is parent.calls, "a snapshot of an environment copies no session"


async def test_an_endpoint_that_fails_is_an_engine_that_is_lost() -> None:
    with ChatServer() as chat:
        endpoint = ChatEndpoint("shop.user", ModelEndpoint.model_validate({"url": chat.url, "model": "m"}))
        model = EndpointModel(endpoint)
        chat.script.append(Scripted(status=404))

        with pytest.raises(ModelFailed, match=r"^shop\.user: status 404$") as caught:
            await model.reply([{"role": "user", "content": "hello"}], 7, math.inf)
        replied = await model.reply([{"role": "user", "content": "hello"}], 7, math.inf)
        await endpoint.aclose()

    assert replied == "reply 2"
    assert isinstance(caught.value, EngineLost), "so that the session is lost, and replayed where it can be"
