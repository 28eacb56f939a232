"""The environment server as a process: HTTP, the stream, start and end."""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from gymfleet_contracts.frames import ReplyFrame, RequestFrame, encode
from websockets.asyncio.client import ClientConnection, connect

from tests.conformance.env_server import COMMAND, EnvServer, wait_until_gone
from tests.fixtures.paths import SHARED_DATA

ENV_FILE = str(Path(__file__).parents[1] / "conformance" / "troublesome_env.py")
UPSTREAM = [path for path in [SHARED_DATA / "maze"] if path.exists()]
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServer]:
    with EnvServer(
        tmp_path_factory.mktemp("server"), ENV_FILE, "maze", shards=2, max_sessions=40, max_observation_chars=1000
    ) as server:
        yield server


@pytest.fixture
def http(server: EnvServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=30) as client:
        yield client


def opened(http: httpx.Client, **fields: Any) -> str:
    response = http.post("/v1/sessions", json={"env": "troublesome", "task_index": 0, **fields})
    assert response.status_code == 201, response.text
    session_id: str = response.json()["session_id"]
    return session_id


_decode_replies = msgspec.msgpack.Decoder(ReplyFrame | list[ReplyFrame]).decode


def decode_replies(data: bytes) -> list[ReplyFrame]:
    found = _decode_replies(data)
    return found if isinstance(found, list) else [found]


class Stream:
    """Frames over one socket; `ask` waits for its own answer and keeps those of others."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.answers: dict[int, Any] = {}
        self.order: list[int] = []

    async def send(self, frame_id: int, op: str, session_id: str = "", body: dict[str, Any] | None = None) -> None:
        await self.socket.send(encode(RequestFrame(frame_id, op, session_id, body or {})))

    async def answer(self, frame_id: int) -> Any:
        while frame_id not in self.answers:
            for reply in decode_replies(await asyncio.wait_for(self.socket.recv(decode=False), 30)):
                self.answers[reply.id] = reply.ok if reply.problem is None else reply.problem
                self.order.append(reply.id)
        return self.answers[frame_id]

    async def ask(self, frame_id: int, op: str, session_id: str = "", body: dict[str, Any] | None = None) -> Any:
        await self.send(frame_id, op, session_id, body)
        return await self.answer(frame_id)


@asynccontextmanager
async def streaming(server: EnvServer) -> AsyncIterator[Stream]:
    async with connect(f"ws://127.0.0.1:{server.port}/v1/stream", compression=None) as socket:
        yield Stream(socket)


async def on_two_shards(stream: Stream) -> list[str]:
    """Two sessions that do not wait for each other. A shard that has just worked is avoided: others may come first."""
    opened: list[str] = []
    while len(by_shard := {session_id.split("-")[1]: session_id for session_id in opened}) < 2:
        assert len(opened) < 20, "twenty sessions on one shard"
        session = await stream.ask(1000 + len(opened), "open", body={"env": "troublesome", "task_index": 0})
        opened.append(session["session_id"])
    for frame_id, session_id in enumerate(set(opened) - set(by_shard.values()), start=2000):
        await stream.ask(frame_id, "close", session_id)
    return list(by_shard.values())


def test_two_environments_are_listed_and_an_unknown_one_is_not_found(http: httpx.Client) -> None:
    assert [spec["name"] for spec in http.get("/v1/environments").json()] == ["troublesome", "maze"]
    unknown = http.get("/v1/environments/nowhere")
    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/unknown-environment")


def test_openapi_names_the_wire_models(http: httpx.Client) -> None:
    api = http.get("/openapi.json").json()

    step = api["paths"]["/v1/sessions/{session_id}/steps"]["post"]["responses"]
    assert step["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/StepResult"}
    assert {"404", "409", "410", "413", "422", "500", "504"} <= step.keys()


def test_batch_answers_every_item_in_order(http: httpx.Client) -> None:
    one, two = opened(http), opened(http)
    items = [
        {"session_id": one, "index": 0, "action": "a"},
        {"session_id": two, "index": 5, "action": "b"},
        {"session_id": "nonsense", "index": 0, "action": "c"},
        {"session_id": one, "index": 1, "action": "d"},
        {"session_id": two, "index": 0, "action": "raise"},
    ]

    results = http.post("/v1/steps", json=items).raise_for_status().json()

    assert [result.get("observation", result.get("type")) for result in results] == [
        "step 1: a",
        "/problems/step-out-of-order",
        "/problems/unknown-session",
        "step 2: d",
        "/problems/environment-failed",
    ]
    assert http.post("/v1/steps", json=[]).status_code == 422
    http.delete(f"/v1/sessions/{one}")


def test_failed_environment_is_logged_and_not_told(server: EnvServer, http: httpx.Client) -> None:
    session_id = opened(http)

    response = http.post(f"/v1/sessions/{session_id}/steps", json={"index": 0, "action": "raise"})

    assert response.status_code == 500
    assert "secret" not in response.text
    assert "secret of the step" in server.log


def test_long_observation_is_cut(http: httpx.Client) -> None:
    session_id = opened(http)

    result = http.post(f"/v1/sessions/{session_id}/steps", json={"index": 0, "action": "big"}).json()

    assert result["observation"] == "x" * 1000 + "\n[cut: 99000 more characters]"
    http.delete(f"/v1/sessions/{session_id}")


@pytest.mark.parametrize("body", [b"", b"{", b'{"index": 0, "action": "\\ud800"}', b"\xff", b"[" * 100_000])
def test_unreadable_body_is_refused(http: httpx.Client, body: bytes) -> None:
    session_id = opened(http)

    response = http.post(f"/v1/sessions/{session_id}/steps", content=body, headers=JSON)

    assert response.status_code in (400, 422)
    assert response.headers["content-type"] == "application/problem+json"
    assert http.get(f"/v1/sessions/{session_id}").json()["index"] == 0
    http.delete(f"/v1/sessions/{session_id}")


def test_full_server_refuses_and_says_when_to_come_back(http: httpx.Client) -> None:
    ids = []
    while (response := http.post("/v1/sessions", json={"env": "maze", "task_index": 0})).status_code == 201:
        ids.append(response.json()["session_id"])
        assert len(ids) <= 40

    assert (response.status_code, response.json()["type"]) == (503, "/problems/environment-full")
    assert response.headers["retry-after"] == "1"
    fork = http.post(f"/v1/sessions/{ids[0]}/fork", json={"count": 1})
    assert fork.json()["type"] == "/problems/environment-full"
    assert http.get("/readyz").status_code == 200, "full is not broken"
    http.delete(f"/v1/sessions/{ids.pop()}")
    ids.append(http.post("/v1/sessions", json={"env": "maze", "task_index": 0}).raise_for_status().json()["session_id"])
    for session_id in ids:
        http.delete(f"/v1/sessions/{session_id}")
    assert len({session_id.split("-")[1] for session_id in ids}) == 2, "sessions are spread over the shards"


async def test_stream_speaks_the_whole_session_api(server: EnvServer) -> None:
    async with streaming(server) as stream:
        session = await stream.ask(1, "open", body={"env": "troublesome", "task_index": 0, "lease_s": 50})
        session_id = session["session_id"]

        assert session["task"]["task_id"] == "only.train.0"
        assert (await stream.ask(2, "step", session_id, {"index": 0, "action": "hé"}))["observation"] == "step 1: hé"
        children = await stream.ask(3, "fork", session_id, {"count": 2})
        assert [child["index"] for child in children] == [1, 1]
        assert (await stream.ask(4, "lease", session_id, {"lease_s": 99}))["lease_s"] == 99
        assert (await stream.ask(5, "get", session_id))["index"] == 1
        assert await stream.ask(6, "expert", session_id) == {"thought": "I know.", "action": "win"}
        assert (await stream.ask(7, "step", session_id, {"index": 3, "action": ""}))["expected"] == 1
        for frame_id, each in enumerate([session_id, *(child["session_id"] for child in children)], start=8):
            assert await stream.ask(frame_id, "close", each) == {}
        assert (await stream.ask(20, "get", session_id))["type"] == "/problems/unknown-session"


async def test_stream_answers_the_quick_before_the_slow(server: EnvServer) -> None:
    async with streaming(server) as stream:
        first, second = await on_two_shards(stream)

        await stream.send(3, "step", first, {"index": 0, "action": "sleep 1"})
        await stream.ask(4, "step", second, {"index": 0, "action": "go"})

        assert 3 not in stream.answers
        await stream.answer(3)
        for frame_id, session_id in ((5, first), (6, second)):
            await stream.ask(frame_id, "close", session_id)


async def test_stream_executes_concurrent_duplicates_once(server: EnvServer) -> None:
    async with streaming(server) as one, streaming(server) as two:
        session_id = (await one.ask(0, "open", body={"env": "troublesome", "task_index": 0}))["session_id"]

        for frame_id in range(1, 21):
            await (one if frame_id % 2 else two).send(frame_id, "step", session_id, {"index": 0, "action": "go"})
        results = [await (one if frame_id % 2 else two).answer(frame_id) for frame_id in range(1, 21)]

        assert all(result["observation"] == "step 1: go" for result in results)
        assert (await one.ask(99, "step", session_id, {"index": 1, "action": "x"}))["observation"] == "step 2: x"
        await one.ask(100, "close", session_id)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        encode({"id": 1}),
        encode({"id": "x", "op": "step"}),
        encode({"id": 1, "op": "step", "surplus": 1}),
        b"\x82\xa2id\x01\xa2op\xa1\xff",
        b"\x91" * 5000 + b"\x00",
        "text",
    ],
    ids=range(9),
)
async def test_stream_survives_unreadable_frames(server: EnvServer, data: bytes | str) -> None:
    async with streaming(server) as stream:
        await stream.socket.send(data)

        assert (await stream.answer(-1))["status"] == 422
        assert (await stream.ask(7, "get", "nonsense"))["type"] == "/problems/unknown-session"


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("dance", b"\x80"),
        ("probe", b"\x80"),
        ("step", b"\x90"),
        ("step", b"\xc0"),
        ("step", b"\x82\xa5index\x00\xa6action\xa1\xff"),
        ("step", b"\x91" * 900 + b"\x00"),
        ("fork", b"\x81\xa5count\xcd\xff\xff"),
        ("lease", b"\x81\xa7lease_s\xff"),
    ],
)
async def test_stream_refuses_bad_bodies_and_goes_on(server: EnvServer, op: str, body: bytes) -> None:
    async with streaming(server) as stream:
        session_id = (await stream.ask(1, "open", body={"env": "troublesome", "task_index": 0}))["session_id"]
        head = encode({"id": 2, "op": op, "session_id": session_id})

        await stream.socket.send(b"\x84" + head[1:] + b"\xa4body" + body)

        assert (await stream.answer(2))["status"] == 422
        assert (await stream.ask(3, "step", session_id, {"index": 0, "action": "on"}))["observation"] == "step 1: on"
        await stream.ask(4, "close", session_id)


async def test_session_made_for_a_caller_who_left_is_closed(server: EnvServer) -> None:
    async with streaming(server) as stream, httpx.AsyncClient(base_url=server.url) as http:
        blockers = await on_two_shards(stream)
        for frame_id, blocker in enumerate(blockers, start=3):
            await stream.send(frame_id, "step", blocker, {"index": 0, "action": "sleep 0.5"})

        async with streaming(server) as leaver:
            await leaver.send(1, "open", body={"env": "troublesome", "task_index": 0})

        for frame_id in (3, 4):
            await stream.answer(frame_id)
        await _until(http, 'gymfleet_env_sessions{env="troublesome",', 2)
        for frame_id, blocker in enumerate(blockers, start=5):
            await stream.ask(frame_id, "close", blocker)


async def test_metrics_count_steps_once(server: EnvServer) -> None:
    counter = 'gymfleet_env_steps_total{env="maze"}'
    async with streaming(server) as stream, httpx.AsyncClient(base_url=server.url) as http:
        before = await _metric(http, counter)
        session_id = (await stream.ask(1, "open", body={"env": "maze", "task_index": 0}))["session_id"]
        for frame_id in (2, 3, 4):
            await stream.ask(frame_id, "step", session_id, {"index": 0, "action": "go"})
        await stream.ask(5, "step", session_id, {"index": 1, "action": "go"})
        await stream.ask(6, "close", session_id)

        await _until(http, counter, before + 2)
        await _until(http, 'gymfleet_env_sessions{env="maze",', 0)


async def _metric(http: httpx.AsyncClient, name: str) -> float:
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def _until(http: httpx.AsyncClient, name: str, value: float) -> None:
    """Shards report their counts every tenth of a second."""
    async with asyncio.timeout(20):
        while await _metric(http, name) != value:  # noqa: ASYNC110 - the event is in another process
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["nowhere"], {}, "error: there is no environment 'nowhere'; known: academia, alfworld"),
        (["maze"], {"GYMFLEET_ENV_PROT": "1"}, "error: unknown settings GYMFLEET_ENV_PROT"),
        (
            ["maze"],
            {"GYMFLEET_ENV_DATA": '{"maze": "/nonexistent"}'},
            "error: environment maze: /nonexistent/mazes.json",
        ),
        (["maze"], {"GYMFLEET_ENV_SHARDS": "0"}, "error: GYMFLEET_ENV_SHARDS"),
    ],
)
def test_mistake_at_start_is_one_line_and_exit_code_2(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    done = subprocess.run(
        [COMMAND, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("data", UPSTREAM, ids=["lmrl-gym"])
def test_benchmark_files_are_served_under_their_own_ids(tmp_path: Path, data: Path) -> None:
    with EnvServer(tmp_path, "maze", data=json.dumps({"maze": str(data)})) as server:
        spec = httpx.get(f"{server.url}/v1/environments/maze").json()
        session = httpx.post(f"{server.url}/v1/sessions", json={"env": "maze", "task_id": "lmrlgym_maze_13"}).json()

    assert (spec["task_source"], spec["splits"]["test"]) == ("lmrl-gym", 10)
    assert session["task"] == {
        "env": "maze",
        "split": "test",
        "level": "double_t_maze",
        "task_id": "lmrlgym_maze_13",
        "seed": 0,
    }
    assert session["observation"] == (
        "The goal is at position 8, 6. Your current position is at position 5, 3. "
        "There are walls to your left, below you.\n"
    )


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_shard_outlives_the_server_even_in_a_hanging_step(tmp_path: Path, sig: signal.Signals) -> None:
    with EnvServer(tmp_path, ENV_FILE, shards=2, step_timeout_s=3) as server:
        shards = server.children()
        with httpx.Client(base_url=server.url) as http:
            session_id = opened(http)
            with pytest.raises(httpx.ReadTimeout):
                http.post(f"/v1/sessions/{session_id}/steps", json={"index": 0, "action": "hang"}, timeout=0.3)

        code = server.stop(sig)

        assert len(shards) == 2
        wait_until_gone(shards)
        assert code == (-signal.SIGKILL if sig == signal.SIGKILL else 0)
        assert "Traceback" not in server.log
