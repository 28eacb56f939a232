"""OpenEnv's own client, unmodified and in an environment of its own, plays through the gateway."""

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pytest
import websockets
from gymfleet_client import SyncGatewayClient
from gymfleet_contracts.session import OpenSession, ServerLoad
from websockets.asyncio.client import ClientConnection, connect

from tests.fixtures import gateway_fleet, peers
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.levels_environment import COUNTS
from tests.fixtures.redis_server import RedisServer

ENVIRONMENTS = ("maze", "textcraft", "wordle")
LEVELS = "tests.fixtures.levels_environment:Levels"


class Peer:
    """One program with OpenEnv's clients, by name."""

    def __init__(self, base_url: str, *key: str) -> None:
        self._process = peers.start("openenv_client", base_url, *key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def __call__(self, client: str, method: str, /, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([client, method, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, self._process.stderr.read() if self._process.stderr else ""
        return json.loads(line)

    def kill(self) -> None:
        """End it as a power failure would: the kernel closes its connections, and no close frame is sent."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    logs = tmp_path_factory.mktemp("openenv")
    server = gateway_fleet.env_server(logs, *ENVIRONMENTS, LEVELS, expert_splits='["train", "validation", "test"]')
    front = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, front):
        yield front


def base(gateway: ServiceProcess, env: str = "maze") -> str:
    return f"{gateway.url}/openenv/{env}"


def http(method: str, url: str, body: Any = None, **headers: str) -> httpx.Response:
    return httpx.request(method, url, json=body, headers=headers, timeout=30, trust_env=False)


@asynccontextmanager
async def socket(url: str, path: str = "/ws") -> AsyncIterator[ClientConnection]:
    async with connect(url.replace("http", "ws", 1) + path, proxy=None) as connection:
        yield connection


async def ask(connection: ClientConnection, frame: Any) -> Any:
    await connection.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
    return json.loads(await connection.recv())


@pytest.mark.peers
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_an_episode_is_won_by_the_experts_moves(gateway: ServiceProcess, env: str) -> None:
    with Peer(base(gateway, env)) as peer, SyncGatewayClient(gateway.url) as native:
        assert peer("one", "version") == "0.10.0"
        for index in (3, 4):
            twin = native.open(OpenSession(env=env, split="test", task_index=index))
            shown = peer("one", "reset", split="test", task_index=index, episode_id=f"episode {index}")
            assert (shown["observation"]["text"], shown["reward"], shown["done"]) == (twin.observation, None, False)
            assert shown["metadata"]["task_id"] == twin.task.task_id, "the task that was asked for, echoed"

            steps = 0
            while not shown["done"]:
                action = native.expert(twin.session_id).action
                expected = native.step(twin.session_id, steps, action)
                shown = peer("one", "step", message=action)
                steps += 1
                assert (shown["observation"]["text"], shown["reward"]) == (expected.observation, expected.reward)
                assert (shown["done"], shown["metadata"]["score"]) == (expected.terminated, expected.score)

            assert shown["metadata"]["score"] == 1.0
            state = peer("one", "state")
            assert (state["episode_id"], state["step_count"], state["done"]) == (f"episode {index}", steps, True)
            over = peer("one", "step", message=action)
            assert over["raised"] == "RuntimeError"
            assert "EXECUTION_ERROR" in over["message"]


@pytest.mark.peers
def test_two_clients_stay_apart(gateway: ServiceProcess) -> None:
    with Peer(base(gateway)) as peer:
        for name in ("a", "b"):
            peer(name, "reset", task_index=5)
        alone = [peer("a", "step", message="move up")["observation"]["text"] for _ in range(2)]

        assert peer("b", "state")["step_count"] == 0
        assert [peer("b", "step", message="move up")["observation"]["text"] for _ in range(2)] == alone
        assert peer("a", "state")["session_id"] != peer("b", "state")["session_id"]


@pytest.mark.peers
def test_a_seed_names_a_task_and_none_draws_one(gateway: ServiceProcess) -> None:
    with Peer(base(gateway)) as peer, SyncGatewayClient(gateway.url) as native:
        count = native.environment("maze").splits["train"]
        by_seed = [peer("one", "reset", seed=seed)["metadata"]["task_id"] for seed in (7, count + 7, 8)]
        drawn = {peer("one", "reset")["metadata"]["task_id"] for _ in range(6)}

    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert by_seed[0].endswith(".train.7")
    assert len(drawn) > 1


def test_a_seed_names_a_task_of_a_level_with_fewer_tasks_too(gateway: ServiceProcess) -> None:
    for seed in (2, 40):  # the default level has so many
        reset = http("POST", f"{base(gateway, 'levels')}/reset", {"level": "hard", "seed": seed}).json()
        assert reset["observation"]["text"] == f"hard-{seed % COUNTS['hard']}"
    drawn = http("POST", f"{base(gateway, 'levels')}/reset", {"level": "hard"})
    assert drawn.status_code == 200, drawn.text
    named = http("POST", f"{base(gateway, 'levels')}/reset", {"level": "hard", "task_index": 40})
    assert named.status_code == 404, "no other task takes the place of one that is named"


@pytest.mark.peers
def test_openenv_validate_passes(gateway: ServiceProcess) -> None:
    argv = [peers.command("openenv"), "validate", "--url", base(gateway), "--json"]
    report = json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=120).stdout)

    assert (report["passed"], report["mode"]) == (True, "simulation")
    assert report["summary"]["failed_criteria"] == []


@pytest.mark.peers
def test_mcp_tools_and_socket_share_an_episode(gateway: ServiceProcess) -> None:
    with Peer(base(gateway)) as peer:
        assert [tool["name"] for tool in peer("mcp", "list_tools")] == ["act", "observe", "begin"]
        begun = peer("mcp", "reset", task_index=5)
        acted = peer("mcp", "call_tool", name="act", message="move up")

        assert acted["metadata"]["step_count"] == 1
        assert peer("mcp", "state")["step_count"] == 1
        assert peer("mcp", "call_tool", name="observe")["metadata"]["task_id"] == begun["metadata"]["task_id"]
        assert "Tool not found" in peer("mcp", "call_tool", name="reset")["message"]
        assert peer("mcp", "call_tool", name="begin", task_index=6)["metadata"]["step_count"] == 0
        assert peer("mcp", "state")["step_count"] == 0


@pytest.mark.peers
def test_a_client_whose_gateway_died_must_reset_or_resume(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway), Peer(base(gateway)) as peer:
        first = peer("one", "reset", task_index=5)
        before = peer("one", "step", message="move up")
        gateway.kill()
        gateway.start()
        gateway.wait_ready()

        broken = [peer("one", "step", message="move up") for _ in range(2)]  # the client reconnects by itself
        assert {answer["raised"] for answer in broken} <= {"RuntimeError", "ConnectionClosedError"}
        assert "session lost, reset required (code: SESSION_ERROR)" in broken[-1]["message"]

        peer("two", "resume", session_id=first["metadata"]["session_id"])
        state = peer("two", "state")
        assert (state["step_count"], state["observation"]) == (1, before["observation"]["text"])
        assert peer("two", "step", message="move up")["metadata"]["step_count"] == 2

        again = peer("one", "reset", task_index=5)
        assert again["observation"]["text"] == first["observation"]["text"]
        assert again["metadata"]["session_id"] != first["metadata"]["session_id"]


@pytest.mark.peers
def test_a_close_frees_the_slot_and_a_lost_client_its_lease(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url], openenv_lease_s="3")
    with gateway_fleet.running(server, gateway), SyncGatewayClient(gateway.url) as native:
        with Peer(base(gateway)) as peer:
            closed = peer("one", "reset", task_index=5)["metadata"]["session_id"]
            peer("one", "close")
            lost = peer("two", "reset", task_index=6)["metadata"]["session_id"]
            peer.kill()

        assert native.get(lost).index == 0, "it waits to be resumed"
        with pytest.raises(Exception, match="closed, or its lease ran out"):
            native.get(closed)
        deadline = time.monotonic() + 20
        while _open_sessions(server):
            assert time.monotonic() < deadline
            time.sleep(0.1)


async def test_a_proper_end_of_the_socket_closes_at_once(gateway: ServiceProcess) -> None:
    async with socket(base(gateway)) as connection:
        begun = await ask(connection, {"type": "reset", "data": {"task_index": 5}})
    session_id = begun["data"]["metadata"]["session_id"]

    deadline = time.monotonic() + 10  # far less than the lease
    while http("GET", f"{gateway.url}/v1/sessions/{session_id}").status_code != 404:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@pytest.mark.peers
def test_a_client_may_think_longer_than_a_lost_one_is_waited_for(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url], openenv_lease_s="1", openenv_idle_s="4")
    with gateway_fleet.running(server, gateway), Peer(base(gateway)) as peer:
        peer("one", "reset", task_index=5)
        time.sleep(2.5)
        assert peer("one", "step", message="move up")["metadata"]["step_count"] == 1

        deadline = time.monotonic() + 30
        while _open_sessions(server):
            assert time.monotonic() < deadline, "but not for ever"
            time.sleep(0.1)
        assert "SESSION_ERROR" in peer("one", "step", message="move up")["message"]


@pytest.mark.peers
def test_a_failure_of_the_machinery_is_no_observation(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway), Peer(base(gateway)) as peer:
        peer("one", "reset", task_index=5)
        server.kill()

        lost = [peer("one", "step", message="move up") for _ in range(2)]
        refused = peer("one", "reset", task_index=5)

    assert all("SESSION_ERROR" in answer["message"] for answer in lost), lost
    assert "EXECUTION_ERROR" in refused["message"]


async def test_a_full_server_is_waited_for_and_then_says_how_full(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze", max_sessions="1")
    gateway = gateway_fleet.gateway(tmp_path, [server.url], queue_timeout_s="0.2")
    hasty = gateway_fleet.gateway(tmp_path, [server.url], queue_timeout_s="0.2", fronts_wait_s="0")
    with gateway_fleet.running(server, gateway, hasty):
        async with socket(base(gateway)) as first, socket(base(gateway)) as second, socket(base(hasty)) as third:
            assert (await ask(first, {"type": "reset"}))["type"] == "observation"
            deadline = time.monotonic() + 20
            while (refused := await ask(third, {"type": "reset"}))["data"].get("active_sessions") == 0:
                assert time.monotonic() < deadline, "the other gateway's session is seen by the next probe"
            await ask(first, {"type": "reset"})  # frees its slot first, so there is one

            assert refused["data"]["code"] == "CAPACITY_REACHED"
            assert refused["data"]["active_sessions"] == refused["data"]["max_sessions"] >= 1
            waiting = asyncio.create_task(ask(second, {"type": "reset"}))
            await asyncio.sleep(0.4)  # by now the queue has turned it away
            assert not waiting.done()
            await first.send('{"type":"close"}')
            await first.wait_closed()
            assert first.close_code == 1000
            assert (await waiting)["type"] == "observation", "the socket survived, and the front came again"


BAD_FRAMES = [
    ("{", "INVALID_JSON"), ("[" * 100_000, "INVALID_JSON"), (b"\x00", "INVALID_JSON"),
    ("[]", "VALIDATION_ERROR"), ("1", "VALIDATION_ERROR"), ("null", "VALIDATION_ERROR"),
    ('"' + "x" * 2_000_000 + '"', "VALIDATION_ERROR"),
    ("{}", "UNKNOWN_TYPE"), ('{"type":"dance"}', "UNKNOWN_TYPE"), ('{"type":{"a":[]}}', "UNKNOWN_TYPE"),
    ('{"type":"step"}', "VALIDATION_ERROR"), ('{"type":"step","data":7}', "VALIDATION_ERROR"),
    ('{"type":"step","data":{"text":"x"}}', "VALIDATION_ERROR"),
    ('{"type":"step","data":{"message":"x","extra":1}}', "VALIDATION_ERROR"),
    ('{"type":"step","data":{"message":"x"},"request_id":"1"}', "VALIDATION_ERROR"),
    ('{"type":"state","data":{}}', "VALIDATION_ERROR"),
    ('{"type":"reset","data":{"seed":-1}}', "VALIDATION_ERROR"),
    ('{"type":"reset","data":{"task_idx":1}}', "VALIDATION_ERROR"),
    ('{"type":"reset","data":{"task_index":1,"task_id":"a"}}', "VALIDATION_ERROR"),
    ('{"type":"reset","data":{"task_index":999999999}}', "VALIDATION_ERROR"),
    ('{"type":"reset","data":{"task_id":"no such"}}', "VALIDATION_ERROR"),
    ('{"type":"reset","data":{"split":"gold"}}', "VALIDATION_ERROR"),
    ('{"type":"step","data":{"message":"x"}}', "SESSION_ERROR"),
]  # fmt: skip


async def test_bad_frames_are_answered_and_the_socket_survives(gateway: ServiceProcess) -> None:
    async with socket(base(gateway)) as connection:
        for frame, code in BAD_FRAMES:
            answer = await ask(connection, frame)
            assert (answer["type"], answer["data"]["code"]) == ("error", code), frame[:80]
            assert answer["data"]["message"]
        assert await ask(connection, {"type": "state"}) == {
            "type": "state",
            "data": {"episode_id": None, "step_count": 0},
        }
        assert (await ask(connection, {"type": "reset", "data": {"seed": 1}}))["type"] == "observation"
        long = await ask(connection, {"type": "step", "data": {"message": "x" * 100_000}})
        assert long["data"]["code"] == "VALIDATION_ERROR"
        stepped = await ask(connection, {"type": "step", "data": {"message": "move up", "metadata": {"a": 1}}})
        assert stepped["data"]["metadata"]["step_count"] == 1, "the one that was too long was not played"


async def test_who_resumes_takes_the_session_from_the_other(gateway: ServiceProcess) -> None:
    async with socket(base(gateway)) as first:
        begun = await ask(first, {"type": "reset", "data": {"task_index": 5}})
        session_id = begun["data"]["metadata"]["session_id"]
        async with socket(base(gateway), f"/ws?session_id={session_id}") as second:
            assert (await ask(second, {"type": "step", "data": {"message": "move up"}}))["type"] == "observation"
            assert (await ask(first, {"type": "step", "data": {"message": "move up"}}))["data"][
                "code"
            ] == "SESSION_ERROR"
            await first.close()
            assert (await ask(second, {"type": "state"}))["data"]["step_count"] == 1, "nor can the other close it"


async def test_who_cannot_resume_takes_nothing_from_the_other(gateway: ServiceProcess) -> None:
    async with socket(base(gateway)) as first:
        begun = [await ask(first, {"type": "reset", "data": {"task_index": 5}}) for _ in range(2)]
        ended, running = (answer["data"]["metadata"]["session_id"] for answer in begun)
        for env, session_id in (("maze", ended), ("wordle", running)):
            async with socket(base(gateway, env), f"/ws?session_id={session_id}") as second:
                assert json.loads(await second.recv())["data"]["code"] == "SESSION_ERROR"
            assert (await ask(first, {"type": "step", "data": {"message": "move up"}}))["type"] == "observation"


async def test_a_session_that_is_not_there_cannot_be_resumed(gateway: ServiceProcess) -> None:
    with SyncGatewayClient(gateway.url) as native:
        elsewhere = native.open(OpenSession(env="wordle", task_index=0)).session_id
    for session_id in ("forged", "openenv-forged", elsewhere):
        async with socket(base(gateway), f"/ws?session_id={session_id}") as connection:
            assert json.loads(await connection.recv())["data"]["code"] == "SESSION_ERROR"
            with pytest.raises(websockets.ConnectionClosed):
                await connection.recv()


def test_schema_tells_what_is_accepted(gateway: ServiceProcess) -> None:
    schema = http("GET", f"{base(gateway)}/schema").json()

    assert schema["action"]["required"] == ["message"]
    assert schema["action"]["additionalProperties"] is False
    assert set(schema["observation"]["properties"]) == {"text", "done", "reward", "metadata"}
    assert http("GET", f"{base(gateway)}/metadata").json()["name"] == "maze"
    assert http("GET", f"{base(gateway)}/health").json() == {"status": "healthy"}
    assert http("GET", f"{gateway.url}/openenv/chess/health").status_code == 404
    assert http("GET", f"{base(gateway)}/web").status_code == 404


def test_tasks_are_what_reset_takes(gateway: ServiceProcess) -> None:
    url = f"{base(gateway)}/maze"
    count = http("POST", f"{url}/num_tasks", {"split": "test"}).json()["num_tasks"]
    listed = http("POST", f"{url}/tasks", {"split": "test"}).json()
    few = http("POST", f"{url}/task_range", {"split": "train", "start": 3, "stop": 5}).json()["tasks"]
    task = http("POST", f"{url}/task", {"split": "test", "index": 4}).json()["task"]

    assert http("GET", f"{base(gateway)}/list_environments").json() == ["maze"]
    assert {"name": "test", "type": "test"} in http("GET", f"{url}/splits").json()
    assert (len(listed["tasks"]), listed["env_name"], listed["tasks"][4]) == (count, "maze", task)
    assert few == [{"split": "train", "task_index": 3}, {"split": "train", "task_index": 4}]
    assert http("POST", f"{base(gateway)}/reset", task).json()["metadata"]["task_id"].endswith(".test.4")
    for path, body, status in (
        ("maze/task", {"split": "test", "index": count}, 404), ("maze/task", {"split": "test", "index": -1}, 404),
        ("maze/tasks", {"split": "gold"}, 404), ("maze/tasks", {"split": "train"}, 422),
        ("chess/num_tasks", {"split": "test"}, 404), ("maze/num_tasks", {}, 422),
    ):  # fmt: skip
        assert http("POST", f"{base(gateway)}/{path}", body).status_code == status, path


def test_over_http_the_session_is_named(gateway: ServiceProcess) -> None:
    url = base(gateway)
    begun = http("POST", f"{url}/reset", {"task_index": 5}).json()
    session_id = begun["metadata"]["session_id"]
    step = {"action": {"message": "move up"}, "session_id": session_id}

    first = http("POST", f"{url}/step", {**step, "index": 0}).json()
    assert http("POST", f"{url}/step", {**step, "index": 0}).json() == first, "a repeat plays nothing"
    assert http("POST", f"{url}/step", step).json()["metadata"]["step_count"] == 2
    assert http("GET", f"{url}/state?session_id={session_id}").json()["step_count"] == 2
    assert http("GET", f"{url}/state").json() == {"episode_id": None, "step_count": 0}

    for body, status in (
        ({"action": {"message": "x"}}, 422), ({**step, "action": {"text": "x"}}, 422),
        ({**step, "session_id": "forged"}, 404), ({**step, "index": 9}, 409),
    ):  # fmt: skip
        answer = http("POST", f"{url}/step", body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def rpc(url: str, method: str, params: Any = None) -> Any:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}
    answer = http("POST", f"{url}/mcp", body)
    assert answer.status_code == 200
    assert answer.json()["id"] == 7
    return answer.json()


def test_json_rpc_over_http_and_sockets(gateway: ServiceProcess) -> None:
    url = base(gateway)
    session_id = rpc(url, "openenv/session/create")["result"]["session_id"]
    act = {"name": "act", "arguments": {"message": "move up"}, "session_id": session_id}

    assert rpc(url, "tools/call", act)["result"]["data"]["metadata"]["step_count"] == 1
    assert rpc(url, "tools/call", {**act, "name": "dance"})["error"]["code"] == -32602
    assert rpc(url, "tools/call", {**act, "arguments": {}})["error"]["code"] == -32602
    assert rpc(url, "tools/call", {"name": "act", "arguments": {}})["error"]["code"] == -32602
    closed = {"session_id": session_id, "closed": True}
    assert rpc(url, "openenv/session/close", {"session_id": session_id})["result"] == closed
    assert rpc(url, "openenv/session/close", {"session_id": session_id})["error"]["code"] == -32602
    assert rpc(url, "tools/call", act)["error"]["code"] == -32602
    assert rpc(url, "dance")["error"]["code"] == -32601
    assert http("POST", f"{url}/mcp", {}).json()["error"]["code"] == -32600
    assert http("POST", f"{url}/mcp", [1]).json()["error"]["code"] == -32600
    unreadable = httpx.post(f"{url}/mcp", content="{", timeout=30, trust_env=False).json()
    assert unreadable["error"]["code"] == -32700


async def test_an_mcp_socket_begins_nothing_unasked(gateway: ServiceProcess) -> None:
    act = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "act", "arguments": {"message": "x"}}}
    create = {"jsonrpc": "2.0", "id": 2, "method": "openenv/session/create"}
    async with socket(base(gateway), "/mcp") as connection:
        assert (await ask(connection, act))["error"]["data"]["code"] == "SESSION_ERROR"
        assert (await ask(connection, "{"))["error"]["code"] == -32700
        session_id = (await ask(connection, create))["result"]["session_id"]
        assert (await ask(connection, create))["result"]["session_id"] == session_id
        assert (await ask(connection, act))["result"]["data"]["metadata"]["step_count"] == 1
    async with socket(base(gateway)) as connection:
        assert (await ask(connection, {"type": "mcp", "data": act}))["data"]["error"]["code"] == -32000
        call = {"type": "call_tool", "tool_name": "begin", "arguments": {"task_index": 3}}
        begun = await ask(connection, {"type": "step", "data": call})
        assert begun["data"]["observation"]["result"]["data"]["metadata"]["task_id"].endswith(".train.3")
        assert (await ask(connection, {"type": "mcp", "data": act}))["data"]["result"]["data"]["done"] is False
        assert (await ask(connection, {"type": "mcp", "data": {"nonsense": 1}}))["data"]["error"]["code"] == -32600


def test_mcp_sessions_are_known_to_every_gateway(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        server = gateway_fleet.env_server(tmp_path, "maze")
        gateways = [gateway_fleet.gateway(tmp_path, [server.url], redis_url=redis.url) for _ in range(2)]
        with gateway_fleet.running(server, *gateways):
            one, two = (base(gateway) for gateway in gateways)
            session_id = rpc(one, "openenv/session/create")["result"]["session_id"]
            # The task is a random one: an action that leads nowhere cannot reach its goal.
            act = {"name": "act", "arguments": {"message": "stand still"}, "session_id": session_id}
            counts = [
                rpc(url, "tools/call", act)["result"]["data"]["metadata"]["step_count"] for url in (one, two, one)
            ]
            assert counts == [1, 2, 3]

            gateways[0].kill()
            assert rpc(two, "tools/call", act)["result"]["data"]["metadata"]["step_count"] == 4
            assert rpc(two, "openenv/session/close", {"session_id": session_id})["result"]["closed"] is True


@pytest.mark.peers
async def test_keys_are_asked_for_before_the_handshake(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url], api_key="a key of these tests")
    with gateway_fleet.running(server, gateway):
        with Peer(base(gateway)) as stranger, Peer(base(gateway), "a key of these tests") as known:
            assert stranger("one", "reset")["raised"] == "ConnectionError"
            assert known("one", "reset", seed=1)["done"] is False
        assert http("POST", f"{base(gateway)}/reset", {}).status_code == 401
        assert http("POST", f"{base(gateway)}/mcp", {}).status_code == 401
        with_key = f"http://any:a%20key%20of%20these%20tests@127.0.0.1:{gateway.port}/openenv/maze"
        assert http("POST", f"{with_key}/reset", {}).status_code == 200
        assert http("GET", f"{base(gateway)}/health").status_code == 200


async def test_web_pages_cannot_connect(gateway: ServiceProcess) -> None:
    url = base(gateway).replace("http", "ws", 1) + "/ws"
    with pytest.raises(websockets.InvalidStatus):
        async with connect(url, proxy=None, origin=websockets.Origin("https://evil.example")):
            pass


def _open_sessions(server: ServiceProcess) -> bool:
    """Whether the env server says that it holds any."""
    load = ServerLoad.model_validate(http("GET", f"{server.url}/v1/load").json())
    return any(number for owners in load.sessions.values() for number in owners.values())
