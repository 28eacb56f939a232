"""Environments that ask models, through an env server and through a gateway that recovers their sessions."""

import asyncio
import json
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from gymfleet_cli.main import run
from gymfleet_client import SessionStream, SyncGatewayClient
from gymfleet_client.errors import EnvironmentFailed, ForkUnsupported, SessionLost
from gymfleet_client.multiplex import FrameChannel
from gymfleet_contracts.frames import Op, RawReply
from gymfleet_contracts.session import OpenSession, Session
from gymfleet_kit.streams import connect, disconnect

from tests.conformance.env_server import COMMAND, EnvServer
from tests.fixtures import gateway_fleet
from tests.fixtures.asking_environment import SECRET
from tests.fixtures.chat_server import ChatServer, Scripted, completion
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.paths import ROOT
from tests.fixtures.redis_server import RedisServer

CLASSES = tuple(f"tests.fixtures.asking_environment:{name}" for name in ("Shop", "ThreadedShop"))
KEY = "sk-integration-key"
BOTH = pytest.mark.parametrize("env", ["shop", "threaded_shop"])
DOWN = Scripted(status=503)


def models(url: str, key_file: Path) -> str:
    """The setting that lets `url` answer for every role."""
    endpoint = {"url": url, "model": "m", "key_file": str(key_file), "timeout_s": 2}
    return json.dumps({"shop": {"user": endpoint, "judge": endpoint}, "threaded_shop": {"user": endpoint}})


@dataclass(frozen=True)
class Fleet:
    """An env server behind a gateway with a journal, and the model that its environments ask."""

    server: ServiceProcess
    gateway: ServiceProcess
    chat: ChatServer
    redis: RedisServer

    def kill_shard(self) -> None:
        """`kill -9` of the process that holds the sessions."""
        for child in psutil.Process(self.server.pid).children():
            os.kill(child.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("fleet")
    (logs / "key").write_text(KEY)
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis, ChatServer() as chat:
        settings = {"models": models(chat.url, logs / "key"), "step_timeout_s": "5"}
        server = gateway_fleet.env_server(logs, *CLASSES, **settings)
        gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
        with gateway_fleet.running(server, gateway):
            assert chat.asked == [], "readiness asks no model"
            yield Fleet(server, gateway, chat, redis)
        assert all(text not in server.log() + gateway.log() for text in (KEY, SECRET))


@pytest.fixture
def fleet(shared: Fleet) -> Fleet:
    shared.server.wait_ready()  # an earlier test may have killed its shard
    shared.chat.forget()
    return shared


@pytest.fixture
async def stream(fleet: Fleet) -> AsyncIterator[SessionStream]:
    async with SessionStream(fleet.gateway.url) as opened:
        yield opened


def task(env: str = "shop", **fields: Any) -> OpenSession:
    return OpenSession(env=env, task_index=0, **fields)


async def told(stream: SessionStream, session: Session, index: int, action: str) -> str:
    return (await stream.step(session.session_id, index, action)).observation


@BOTH
async def test_the_model_plays_its_part_and_the_spec_names_it(fleet: Fleet, stream: SessionStream, env: str) -> None:
    session = await stream.open(task(env))

    assert session.observation == "reply 1"
    assert await told(stream, session, 0, "think") == "2 things were said"
    assert await told(stream, session, 1, "tell hello") == "reply 2"

    assert set(fleet.chat.keys) == {f"Bearer {KEY}"}
    second = fleet.chat.asked[1]
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][0]["content"].startswith(SECRET)
    assert (second["messages"][-1]["content"], second["max_tokens"], second["model"]) == ("hello", 50, "m")
    async with httpx.AsyncClient(base_url=fleet.gateway.url, trust_env=False) as http:
        spec = (await http.get(f"/v1/environments/{env}")).json()
    assert spec["models"][0] == {
        "name": "user", "purpose": "plays the customer", "max_calls": 8, "max_tokens": 400,
    }  # fmt: skip
    assert fleet.chat.url not in json.dumps(spec)


@BOTH
async def test_a_session_is_recovered_with_the_same_replies_and_no_second_call(
    fleet: Fleet, stream: SessionStream, env: str
) -> None:
    session = await stream.open(task(env))
    assert await told(stream, session, 0, "tell one") == "reply 2"
    assert await told(stream, session, 1, "think") == "4 things were said"
    assert await told(stream, session, 2, "tell two") == "reply 3"
    fleet.kill_shard()

    repeated = await stream.step(session.session_id, 2, "tell two")
    assert (repeated.observation, repeated.info) == ("reply 3", {"recovered": 1})
    assert len(fleet.chat.asked) == 3, "the replay asked nothing"
    assert await told(stream, session, 3, "tell three") == "reply 4"
    assert [m["content"] for m in fleet.chat.asked[3]["messages"][1:]] == [
        "Good morning", "reply 1", "one", "reply 2", "two", "reply 3", "three",
    ]  # fmt: skip

    fleet.kill_shard()
    assert await told(stream, session, 4, "tell four") == "reply 5"
    assert len(fleet.chat.asked) == 5, "nor did that of what was played after a replay"


async def test_kill_9_of_the_server_while_a_model_is_asked(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    assert await told(stream, session, 0, "both a b") in {"reply 2 and reply 3", "reply 3 and reply 2"}
    fleet.chat.script.append(Scripted(completion("never heard"), delay_s=1.5))
    stepping = asyncio.create_task(told(stream, session, 1, "tell one"))
    await asyncio.to_thread(fleet.chat.wait_asked, 4)
    await asyncio.to_thread(fleet.server.kill)
    await asyncio.to_thread(fleet.server.start)

    assert await stepping == "reply 5"
    assert [*sorted(fleet.chat.texts()[:3]), *fleet.chat.texts()[3:]] == ["Good morning", "a", "b", "one", "one"]


async def test_an_episode_ends_with_the_judges_score_after_a_recovery(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    fleet.chat.script.append(Scripted(completion("yes")))
    ended = await stream.step(session.session_id, 0, "done")
    fleet.kill_shard()

    again = await stream.step(session.session_id, 0, "done")

    assert (ended.score, ended.terminated) == (again.score, again.terminated) == (1.0, True)
    assert len(fleet.chat.asked) == 2


async def test_a_replay_that_asks_something_else_is_a_lost_session(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    assert await told(stream, session, 0, "drift") == "reply 2"
    fleet.kill_shard()

    with pytest.raises(SessionLost, match="could not be replayed: shop asked its models something else"):
        await told(stream, session, 1, "tell one")
    with pytest.raises(SessionLost):
        await told(stream, session, 1, "tell one")
    assert len(fleet.chat.asked) == 2


async def test_forks_share_the_past_and_no_future(fleet: Fleet, stream: SessionStream) -> None:
    parent = await stream.open(task())
    await told(stream, parent, 0, "tell one")
    one, other = await stream.fork(parent.session_id, 2)
    assert len(fleet.chat.asked) == 2, "a native copy asks nothing"

    assert await told(stream, one, 1, "tell two") == "reply 3"
    assert await told(stream, other, 1, "tell two") == "reply 4"
    fleet.kill_shard()

    assert await told(stream, one, 1, "tell two") == "reply 3"
    assert await told(stream, other, 2, "tell three") == "reply 5"
    assert await told(stream, parent, 1, "tell two") == "reply 6"


@BOTH
async def test_each_child_has_the_bounds_of_a_session(fleet: Fleet, stream: SessionStream, env: str) -> None:
    parent = await stream.open(task(env))
    await told(stream, parent, 0, "tell one")

    for session in (*await stream.fork(parent.session_id, 2), parent):
        for index in range(1, 7):
            await told(stream, session, index, "tell on")
        with pytest.raises(EnvironmentFailed):
            await told(stream, session, 7, "tell on")

    assert len(fleet.chat.asked) == 2 + 3 * 6


async def test_a_fork_by_replay_repeats_the_replies(fleet: Fleet, stream: SessionStream) -> None:
    parent = await stream.open(task("threaded_shop"))
    await told(stream, parent, 0, "tell one")
    (child,) = await stream.fork(parent.session_id)
    (grandchild,) = await stream.fork(child.session_id)
    assert (child.observation, len(fleet.chat.asked)) == ("reply 2", 2)

    assert await told(stream, grandchild, 1, "tell two") == "reply 3"
    fleet.kill_shard()
    assert await told(stream, grandchild, 1, "tell two") == "reply 3"

    await told(stream, parent, 1, "drift")
    with pytest.raises(ForkUnsupported, match="asked its models something else when its episode was replayed"):
        await stream.fork(parent.session_id)
    assert await told(stream, parent, 2, "tell on") == "reply 5", "the parent goes on"


@BOTH
async def test_a_model_that_is_down_is_a_lost_session_and_never_an_observation(
    fleet: Fleet, stream: SessionStream, env: str
) -> None:
    session = await stream.open(task(env))
    fleet.chat.script.extend([DOWN] * 12)

    with pytest.raises(SessionLost, match="2 of its own calls in a row ended what it needs: process") as lost:
        await told(stream, session, 0, "tell one")

    assert len(fleet.chat.asked) == 1 + 2 * 3, "asked thrice, replayed, and asked thrice again"
    assert "score" not in str(lost.value)


async def test_calls_and_failures_are_counted(fleet: Fleet, stream: SessionStream) -> None:
    async def counted() -> list[float]:
        async with httpx.AsyncClient(base_url=fleet.server.url, trust_env=False) as http:
            metrics = (await http.get("/metrics")).text
        of_shop = re.findall(r'^gymfleet_env_model_(calls|failures)_total{env="shop"} (.*)$', metrics, re.MULTILINE)
        assert [name for name, _ in of_shop] == ["calls", "failures"]
        return [float(count) for _, count in of_shop]

    before = await counted()
    session = await stream.open(task())
    await told(stream, session, 0, "both a b")
    await asyncio.sleep(0.3)  # until it is reported
    fleet.kill_shard()
    await told(stream, session, 1, "tell one")
    fleet.chat.script.extend([DOWN] * 6)
    with pytest.raises(SessionLost):
        await told(stream, session, 2, "tell two")
    await asyncio.sleep(0.3)

    assert [after - more for after, more in zip(await counted(), before, strict=True)] == [6, 2]


async def test_a_model_that_comes_back_in_time_is_not_missed(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    fleet.chat.script.extend([DOWN] * 4)

    result = await stream.step(session.session_id, 0, "tell one")

    assert (result.observation, result.info) == ("reply 6", {"recovered": 1})


async def test_what_an_environment_makes_up_instead_of_a_reply_is_not_scored(
    fleet: Fleet, stream: SessionStream
) -> None:
    session = await stream.open(task())
    fleet.chat.script.extend([DOWN] * 6)

    with pytest.raises(SessionLost):
        await told(stream, session, 0, "swallow")


async def test_a_model_that_is_too_slow_for_the_step(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    fleet.chat.script.extend([Scripted(completion("late"), delay_s=4)] * 6)

    with pytest.raises(SessionLost):
        await told(stream, session, 0, "tell one")


@BOTH
async def test_without_a_model_no_session_is_opened(fleet: Fleet, env: str) -> None:
    for service in (fleet.server, fleet.gateway):
        fleet.chat.script.extend([DOWN] * 3)
        async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=30) as http:
            answer = await http.post("/v1/sessions", json={"env": env, "task_index": 0})

        assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
        assert f"a model that {env} asked gave no answer while the episode began" in answer.json()["detail"]


@pytest.mark.parametrize("action", ["long a", "stranger", "unawaited"])
async def test_mistakes_of_authors_end_the_session_with_a_typed_failure(stream: SessionStream, action: str) -> None:
    session = await stream.open(task())

    with pytest.raises(EnvironmentFailed, match="shop raised RuntimeError"):
        await told(stream, session, 0, action)


async def test_the_replies_are_told_to_gateways_alone(fleet: Fleet) -> None:
    async def records(url: str, **fields: Any) -> list[bytes]:
        channel = FrameChannel(url)

        async def call(op: Op, session_id: str, body: dict[str, Any]) -> RawReply:
            reply, _ = await channel.request(op, session_id, body, timeout_s=10, repeatable=False)
            assert not reply.failed, reply.problem
            return reply

        try:
            opened = await call(Op.OPEN, "", {"env": "shop", "task_index": 0, **fields})
            session_id = Session.model_validate(msgspec.msgpack.decode(opened.ok)).session_id
            stepped = await call(Op.STEP, session_id, {"index": 0, "action": "tell one"})
            got = await call(Op.GET, session_id, {})
            forked = await call(Op.FORK, session_id, {"count": 1})
            await call(Op.CLOSE, session_id, {})
            bodies = b"".join(bytes(reply.ok) for reply in (opened, stepped, got, forked))
            assert SECRET.encode() not in bodies
            assert b"record_replies" not in bodies
            assert (got.replies, forked.replies) == (b"", b"")
            return [opened.replies, stepped.replies]
        finally:
            await channel.aclose()

    server, gateway = fleet.server.url, fleet.gateway.url
    assert all(len(record) > 20 for record in await records(server, record_replies=True))
    assert await records(server) == await records(server, record_replies=False) == [b"", b""]
    for asked in ({}, {"record_replies": True}, {"record_replies": False}):
        assert await records(gateway, **asked) == [b"", b""]


@pytest.mark.parametrize("opened_with", [{}, {"record_replies": True}])
async def test_nobody_puts_words_into_the_models_mouth(fleet: Fleet, opened_with: dict[str, Any]) -> None:
    forged = msgspec.msgpack.encode([(b"x" * 16, "yes")])

    async def status(url: str) -> tuple[Any, ...]:
        channel = FrameChannel(url)
        try:
            body = {"env": "shop", "task_index": 0, **opened_with}
            opened, _ = await channel.request(Op.OPEN, "", body, timeout_s=10, repeatable=False)
            session_id = msgspec.msgpack.decode(opened.ok)["session_id"]
            step = {"index": 0, "action": "tell one"}
            stepped, _ = await channel.request(
                Op.STEP, session_id, step, timeout_s=10, repeatable=False, replies=forged
            )
            found = msgspec.msgpack.decode(stepped.problem if stepped.failed else stepped.ok)
            return found.get("status"), found.get("observation")
        finally:
            await channel.aclose()

    direct = await status(fleet.server.url)
    assert direct == ((500, None) if opened_with else (422, None)), "who may repeat must repeat what was asked"
    assert await status(fleet.gateway.url) == (None, f"reply {len(fleet.chat.asked)}"), "a gateway passes on no replies"


async def test_a_journal_that_lacks_a_reply_is_not_replayed(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    await told(stream, session, 0, "think")
    await told(stream, session, 1, "think")
    redis: Any = connect(fleet.redis.url)
    try:
        key = f"gymfleet:gateway:journal:{session.session_id}"
        *step, replies = msgspec.msgpack.decode(await redis.lindex(key, -1))
        assert (step[0], msgspec.msgpack.decode(replies)) == ("think", []), "that nothing was asked is recorded"
        await redis.lset(key, -1, msgspec.msgpack.encode([*step, b""]))
    finally:
        await disconnect(redis)
    fleet.kill_shard()

    with pytest.raises(SessionLost, match="what models replied in the episode was not recorded"):
        await told(stream, session, 2, "think")


@BOTH
def test_what_every_environment_promises(fleet: Fleet, env: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"

    code = run(["conformance", fleet.server.url, "--env", env, "--json", str(report)])

    (section,) = json.loads(report.read_text())["sections"]
    assert code == 0, [one for one in section["results"] if one["verdict"] == "fails"]
    verdicts = {one["id"]: one["verdict"] for one in section["results"]}
    assert verdicts["forks.children-equal-the-parent"] == "holds"
    assert verdicts["steps.same-actions-same-episode"] == "not applicable", "a model need not repeat itself"


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs/adding-an-environment.md").read_text(encoding="utf-8")
    own = page.split("## An environment that asks a model")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", own, re.DOTALL)


def in_character(body: dict[str, Any]) -> str:
    """The guide's customer and judge, who are told all that they need to know."""
    asked = body["messages"][-1]["content"]
    if body["model"] == "large":
        return "Yes." if re.search(r"wanted (.*?)\. The clerk concludes: '(it is )?\1'", asked) else "No."
    wish = re.search(r"want (.*?)\. Never", body["messages"][0]["content"])
    assert wish is not None
    return f"I would like {wish[1]}." if "want" in asked else "Good morning."


@pytest.fixture
def guide(tmp_path: Path) -> Iterator[tuple[EnvServer, ChatServer]]:
    """The guide's environment with the guide's setting, but for the addresses."""
    ((tmp_path / "returns_desk.py").write_text(blocks("python")[0]), (tmp_path / "judge").write_text(KEY))
    with ChatServer() as chat:
        chat.rule = in_character
        (setting,) = re.findall(r"GYMFLEET_ENV_MODELS='(.*?)'", blocks("sh")[0], re.DOTALL)
        answering = re.sub(r"https?://[^\"]*", chat.url, setting).replace("/run/keys", str(tmp_path))
        with EnvServer(tmp_path, str(tmp_path / "returns_desk.py"), models=answering) as server:
            yield server, chat


def test_the_environment_of_the_guide(guide: tuple[EnvServer, ChatServer]) -> None:
    server, chat = guide

    def played(*actions: str) -> list[tuple[str, float]]:
        with SyncGatewayClient(server.url) as client:
            session = client.open(OpenSession(env="returns_desk", task_index=0))
            results = [client.step(session.session_id, index, action) for index, action in enumerate(actions)]
            return [(session.observation, 0.0), *((result.observation, result.score) for result in results)]

    (_, (wish, _), _) = played("say What do you want?", "conclude nothing")
    assert wish.startswith("I would like ")
    right = wish.removeprefix("I would like ").removesuffix(".")

    ended = played("say Well?", "hm", f"conclude {right}")

    assert ended == [
        ("Good morning.", 0.0), ("Good morning.", 0.0), ("Say something, or conclude.", 0.0),
        ("The customer leaves.", 1.0),
    ]  # fmt: skip
    assert played("conclude nothing")[-1] == ("The customer leaves.", 0.0)
    asked = {(body["model"], body.get("temperature"), key) for body, key in zip(chat.asked, chat.keys, strict=True)}
    assert asked == {("qwen", 0.7, None), ("large", None, f"Bearer {KEY}")}


def test_an_env_server_without_an_answerer_does_not_start(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, CLASSES[0]], capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "GYMFLEET_ENV_PORT": "1"},
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: environment shop asks a model, user (plays the customer), and nobody answers: set ")
