"""What an environment declares, through an env server and through a gateway that recovers its sessions."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from gymfleet_client import GatewayClient, SessionStream, SyncGatewayClient
from gymfleet_client.errors import (
    ActionsUnavailable,
    ActionTooLarge,
    EnvironmentFailed,
    EnvironmentFull,
    InvalidToolCall,
    Irreversible,
    SessionLost,
    StepOutOfOrder,
)
from gymfleet_contracts.session import OpenSession, Session, ToolCall
from pydantic import JsonValue

from tests.conformance.env_server import EnvServer
from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.paths import ROOT
from tests.fixtures.redis_server import RedisServer
from tests.integration.test_mcp_front import connected

CLASSES = tuple(f"tests.fixtures.declaring_environment:{name}" for name in ("Post", "AwaitingPost", "Wrong"))


@dataclass(frozen=True)
class Fleet:
    """An env server behind a gateway with a journal."""

    server: ServiceProcess
    gateway: ServiceProcess
    letterbox: Path

    def kill_shard(self) -> None:
        """`kill -9` of the process that holds the sessions."""
        for child in psutil.Process(self.server.pid).children():
            os.kill(child.pid, signal.SIGKILL)

    def letters(self) -> list[str]:
        """What reached the outside world."""
        return self.letterbox.read_text().splitlines() if self.letterbox.exists() else []


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("fleet")
    letterbox = logs / "letters"
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        options = json.dumps({"post": {"letterbox": str(letterbox)}})
        server = gateway_fleet.env_server(logs, *CLASSES, options=options)
        gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
        with gateway_fleet.running(server, gateway):
            yield Fleet(server, gateway, letterbox)


@pytest.fixture
def fleet(shared: Fleet) -> Fleet:
    shared.letterbox.unlink(missing_ok=True)
    return shared


@pytest.fixture
async def stream(fleet: Fleet) -> AsyncIterator[SessionStream]:
    async with SessionStream(fleet.gateway.url) as opened:
        yield opened


def task(env: str = "post", *, keys: bool = False) -> OpenSession:
    return OpenSession(env=env, task_index=0, state_keys=keys or None)


async def played(stream: SessionStream, session: Session, *actions: str) -> list[str | None]:
    """The keys after each action."""
    return [(await stream.step(session.session_id, i, action)).state_key for i, action in enumerate(actions)]


@pytest.mark.parametrize("env", ["post", "awaiting_post"])
async def test_state_keys_are_the_same_for_the_same_state_whatever_led_there(stream: SessionStream, env: str) -> None:
    one, other = await stream.open(task(env, keys=True)), await stream.open(task(env, keys=True))

    first = await played(stream, one, "add 2", "add 1", "add 1")
    second = await played(stream, other, "add 4", "add 0")

    assert second == [first[2], first[2]]
    assert len({one.state_key, *first}) == 4
    assert (await stream.get(one.session_id)).state_key == first[2]
    assert [child.state_key for child in await stream.fork(one.session_id, 2)] == [first[2]] * 2
    assert (await stream.renew(one.session_id)).state_key == first[2]


async def test_nobody_who_did_not_ask_sees_a_key_and_none_is_sent_where_there_is_none(fleet: Fleet) -> None:
    async with httpx.AsyncClient(base_url=fleet.gateway.url, trust_env=False) as http:
        opened = await http.post("/v1/sessions", json={"env": "post", "task_index": 0})
        path = f"/v1/sessions/{opened.json()['session_id']}"
        stepped = await http.post(f"{path}/steps", json={"index": 0, "action": "add 1"})
        keyed = await http.post("/v1/sessions", json={"env": "post", "task_index": 0, "state_keys": True})
        beyond = await http.post(
            f"/v1/sessions/{keyed.json()['session_id']}/steps", json={"index": 0, "action": "add 101"}
        )

    assert "state_key" not in opened.json()
    assert "state_key" not in stepped.json()
    assert "state_key" in keyed.json()
    assert "state_key" not in beyond.json()


async def test_keys_are_told_on_after_a_recovery(fleet: Fleet, stream: SessionStream) -> None:
    session, twin = await stream.open(task(keys=True)), await stream.open(task(keys=True))
    [before] = await played(stream, session, "add 7")
    fleet.kill_shard()

    assert (await stream.get(session.session_id, index=1)).state_key == before
    after = await stream.step(session.session_id, 1, "add 1")

    assert after.info == {"recovered": 1}
    assert [after.state_key] == await played(stream, twin, "add 8")


@pytest.mark.parametrize("env", ["post", "awaiting_post"])
async def test_possible_actions_are_listed_over_every_client(fleet: Fleet, stream: SessionStream, env: str) -> None:
    session = await stream.open(task(env))
    over_stream = await stream.admissible_actions(session.session_id, index=0)
    async with GatewayClient(fleet.gateway.url) as rest:
        over_rest = await rest.admissible_actions(session.session_id)
    with SyncGatewayClient(fleet.gateway.url) as blocking:
        assert blocking.admissible_actions(session.session_id) == over_rest == over_stream

    assert over_stream.complete
    assert "add 1" in over_stream.actions
    with pytest.raises(StepOutOfOrder):
        await stream.admissible_actions(session.session_id, index=3)


async def test_lists_of_actions_are_bounded_and_an_unknown_one_is_a_problem(stream: SessionStream) -> None:
    session = await stream.open(task())
    await stream.step(session.session_id, 0, "add 51")
    listed = await stream.admissible_actions(session.session_id)
    await stream.step(session.session_id, 1, "add 50")

    assert (len(listed.actions), listed.complete) == (1024, False)
    with pytest.raises(ActionsUnavailable):
        await stream.admissible_actions(session.session_id)


async def test_nonsense_about_the_state_ends_the_session_with_a_typed_failure(stream: SessionStream) -> None:
    keyed, listed = await stream.open(task("wrong", keys=True)), await stream.open(task("wrong"))

    with pytest.raises(EnvironmentFailed):
        await stream.step(keyed.session_id, 0, "add 1")
    with pytest.raises(EnvironmentFailed):
        await stream.admissible_actions(listed.session_id)


async def test_a_session_is_not_replayed_through_an_action_that_cannot_be_taken_back(
    fleet: Fleet, stream: SessionStream
) -> None:
    sent, unsent = await stream.open(task()), await stream.open(task())
    await played(stream, sent, "add 1", "send hello", "add 1")
    await played(stream, unsent, "add 1", "add 1")
    fleet.kill_shard()

    for _ in range(2):
        with pytest.raises(SessionLost, match="cannot be taken back"):
            await stream.step(sent.session_id, 3, "add 1")
    assert (await stream.step(unsent.session_id, 2, "add 1")).observation == "3", "this one is replayed"
    assert fleet.letters() == ["hello"]


async def test_an_action_at_which_the_process_dies_is_not_taken_again(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    await played(stream, session, "add 1")

    with pytest.raises(SessionLost, match="cannot be taken back"):
        await stream.step(session.session_id, 1, "fall once")

    assert fleet.letters() == ["once"]


async def test_a_session_that_only_asked_whether_is_replayed(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    async with GatewayClient(fleet.gateway.url) as rest:
        assert await rest.irreversible(session.session_id, 0, "send hello")
    with SyncGatewayClient(fleet.gateway.url) as blocking:
        assert not blocking.irreversible(session.session_id, 0, "add 1")
    with pytest.raises(StepOutOfOrder):
        await stream.irreversible(session.session_id, 1, "send hello")
    fleet.kill_shard()

    assert (await stream.step(session.session_id, 0, "add 1")).observation == "1"
    assert not await stream.irreversible(session.session_id, 0, "add 1"), "it was taken: a repeat takes nothing"
    assert fleet.letters() == []


@pytest.mark.parametrize("env", ["post", "awaiting_post"])
async def test_a_fork_by_replay_is_refused_after_such_an_action_and_before_it_is_not(
    fleet: Fleet, stream: SessionStream, env: str
) -> None:
    session = await stream.open(task(env))
    await played(stream, session, "add 1")
    (child,) = await stream.fork(session.session_id)
    await stream.step(session.session_id, 1, "send hello")

    with pytest.raises(Irreversible):
        await stream.fork(session.session_id)
    assert (await stream.step(session.session_id, 2, "add 1")).observation == "2", "the session itself goes on"
    assert (await stream.step(child.session_id, 1, "add 1")).observation == "2"
    assert fleet.letters() == (["hello"] if env == "post" else [])


async def test_a_step_that_is_sent_twice_sends_one_letter(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())

    results = await asyncio.gather(*(stream.step(session.session_id, 0, "send one") for _ in range(4)))

    assert all(result == results[0] for result in results)
    assert fleet.letters() == ["one"]


def call(name: str, **arguments: JsonValue) -> ToolCall:
    return ToolCall(name=name, arguments=arguments)


async def test_a_tool_call_is_spelled_as_an_action_over_every_client(fleet: Fleet, stream: SessionStream) -> None:
    session = await stream.open(task())
    async with GatewayClient(fleet.gateway.url) as rest:
        spec = await rest.environment("post")
        assert await rest.tool_action(session.session_id, call("add", number=3)) == "add 3"
    with SyncGatewayClient(fleet.gateway.url) as blocking:
        assert blocking.tool_action(session.session_id, call("send", text="x")) == "send x"
    action = await stream.tool_action(session.session_id, call("add", number=4))

    assert [tool.name for tool in spec.tools] == ["add", "send"]
    assert (await stream.step(session.session_id, 0, action)).observation == "4", "only the step has counted"
    assert fleet.letters() == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("fly"), "unknown tool 'fly'; known: add, send"),
        (call("add"), "'number' is a required property"),
        (call("add", number="7; rm -rf /"), "/number"),
        (call("add", number=-1), "minimum"),
        (call("add", number=1, more=2), "more"),
        (call("send", text="two\nlines"), "one line"),
        (call("send", text="x" * 300_000), "the limit"),
    ],
    ids=lambda value: value.name if isinstance(value, ToolCall) else "",
)
async def test_a_wrong_tool_call_is_a_problem_for_the_model_and_costs_nothing(
    stream: SessionStream, wrong: ToolCall, told: str
) -> None:
    session = await stream.open(task())

    with pytest.raises(InvalidToolCall, match=told):
        await stream.tool_action(session.session_id, wrong)

    assert (await stream.get(session.session_id)).index == 0
    assert (await stream.step(session.session_id, 0, "add 1")).observation == "1"


async def test_a_tool_call_is_bounded_as_actions_are_and_a_fault_of_the_environment_is_its_own(
    stream: SessionStream,
) -> None:
    session = await stream.open(task())

    with pytest.raises(ActionTooLarge):
        await stream.tool_action(session.session_id, call("send", text="x" * 5000))
    with pytest.raises(EnvironmentFailed):
        await stream.tool_action(session.session_id, call("send", text="raise"))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_mcp_clients_see_declared_tools_as_their_own_and_a_call_is_a_step(fleet: Fleet, mode: str) -> None:
    async with connected(f"{fleet.gateway.url}/mcp/post", mode) as player:
        tools = {tool.name: tool for tool in (await player.client.list_tools()).tools}
        session_id = (await player.call("reset", task_index=0))["session_id"]
        first = await player.call("add", session_id=session_id, index=0, number=2)
        again = await player.call("add", session_id=session_id, index=0, number=2)
        wrong = await player.fail("add", session_id=session_id, index=1, number="two")
        homeless = await player.fail("add", index=1, number=2)
        unplaced = await player.fail("add", session_id=session_id, number=2)
        sent = await player.call("send", session_id=session_id, index=1, text="by MCP")

    assert sorted(tools) == ["add", "close", "fork", "renew", "reset", "send", "state", "step"]
    assert tools["add"].input_schema["required"] == ["session_id", "index", "number"]
    assert first == again
    assert first["observation"] == "2"
    assert wrong["type"] == "/problems/invalid-tool-call"
    assert {homeless["type"], unplaced["type"]} == {"/problems/validation"}
    assert sent["observation"] == "2 and sent"
    assert fleet.letters() == ["by MCP"]


async def test_the_environment_of_the_guide_keeps_what_it_declares(tmp_path: Path) -> None:
    guide = (ROOT / "docs/adding-an-environment.md").read_text(encoding="utf-8")
    source = guide.split('```python\n"""Put parts')[1].split("```")[0]
    (tmp_path / "parcel.py").write_text(f'"""Put parts{source}')
    outbox = tmp_path / "outbox.txt"
    options = json.dumps({"parcel": {"outbox": str(outbox)}})
    with EnvServer(tmp_path, str(tmp_path / "parcel.py"), max_sessions=4, options=options) as server:
        async with GatewayClient(server.url) as client:
            spec = await client.environment("parcel")
            first, second = [
                await client.open(OpenSession(env="parcel", task_id="train-7", state_keys=True)) for _ in range(2)
            ]
            with pytest.raises(EnvironmentFull):
                await client.open(OpenSession(env="parcel", task_index=0), timeout_s=0.5)
            possible = await client.admissible_actions(first.session_id)
            with pytest.raises(InvalidToolCall):
                await client.tool_action(first.session_id, call("put", parts=10))
            put = await client.tool_action(first.session_id, call("put", parts=7))
            packed = await client.step(first.session_id, 0, put)
            await client.step(second.session_id, 0, "put 3")
            as_many = await client.step(second.session_id, 1, "put 4")
            await client.close(second.session_id)
            (child,) = await client.fork(first.session_id)
            await client.close(child.session_id)
            sent = await client.step(
                first.session_id, 1, await client.tool_action(first.session_id, call("send", address="Bonn"))
            )
            with pytest.raises(Irreversible):
                await client.fork(first.session_id)

    assert (spec.slots, spec.step_timeout_s, [tool.name for tool in spec.tools]) == (2, 120.0, ["put", "send"])
    assert possible.actions == [f"put {parts}" for parts in range(1, 8)]
    assert packed.state_key == as_many.state_key != first.state_key
    assert (sent.score, sent.terminated) == (1.0, True)
    assert outbox.read_text() == "7 to Bonn\n"
