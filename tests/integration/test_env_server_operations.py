"""The env server in operation: its load, batches on the stream, bad sockets, draining."""

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest
from gymfleet_contracts.frames import MAX_FRAME_BYTES, ReplyFrame, RequestFrame, encode
from gymfleet_contracts.session import ServerLoad
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.conformance.env_server import EnvServer

ENV_FILE = str(Path(__file__).parents[1] / "conformance" / "troublesome_env.py")
_decode_replies = msgspec.msgpack.Decoder(ReplyFrame | list[ReplyFrame]).decode


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServer]:
    with EnvServer(tmp_path_factory.mktemp("server"), ENV_FILE, "maze", shards=2, max_sessions=300) as server:
        yield server


def socket_to(server: EnvServer) -> connect:
    return connect(f"ws://127.0.0.1:{server.port}/v1/stream", compression=None, max_size=None)


async def replies(socket: ClientConnection, count: int) -> tuple[dict[int, ReplyFrame], int]:
    """So many answers by their id, and in how many messages they came."""
    found: dict[int, ReplyFrame] = {}
    messages = 0
    async with asyncio.timeout(30):
        while len(found) < count:
            taken = _decode_replies(await socket.recv(decode=False))
            messages += 1
            for reply in taken if isinstance(taken, list) else [taken]:
                assert reply.id not in found
                found[reply.id] = reply
    return found, messages


def opening(frame_id: int, **fields: Any) -> RequestFrame:
    return RequestFrame(frame_id, "open", body={"env": "troublesome", "task_index": 0, **fields})


async def opened(socket: ClientConnection, count: int = 1, **fields: Any) -> list[str]:
    await socket.send(encode([opening(frame_id, **fields) for frame_id in range(count)]))
    found, _ = await replies(socket, count)
    return [found[frame_id].ok["session_id"] for frame_id in range(count)]


async def close_all(socket: ClientConnection, ids: list[str]) -> None:
    await socket.send(encode([RequestFrame(n, "close", session_id) for n, session_id in enumerate(ids)]))
    await replies(socket, len(ids))


async def text(server: EnvServer, path: str) -> str:
    async with httpx.AsyncClient(base_url=server.url) as http:
        return (await http.get(path)).raise_for_status().text


async def load_becomes(server: EnvServer, sessions: dict[str, dict[str, int]]) -> float:
    """Wait for it: the seconds that it took."""
    began = time.monotonic()
    async with httpx.AsyncClient(base_url=server.url) as http, asyncio.timeout(20):
        while True:
            load = ServerLoad.model_validate((await http.get("/v1/load")).raise_for_status().json())
            if load.sessions == sessions:
                return time.monotonic() - began
            await asyncio.sleep(0.01)


async def test_load_counts_sessions_by_environment_and_owner(server: EnvServer) -> None:
    async with socket_to(server) as socket:
        ann, bob, nobody = await opened(socket, 3, owner="ann"), await opened(socket, owner="bob"), await opened(socket)
        maze = await opened(socket, env="maze", owner="ann")
        await socket.send(encode(RequestFrame(1, "fork", ann[0], {"count": 2})))
        children = [child["session_id"] for child in (await replies(socket, 1))[0][1].ok]

        await load_becomes(server, {"troublesome": {"ann": 5, "bob": 1, "": 1}, "maze": {"ann": 1}})
        metrics = await text(server, "/metrics")
        assert 'gymfleet_env_sessions{env="troublesome",owner="ann"} 5.0' in metrics
        assert 'gymfleet_env_sessions{env="maze",owner="ann"} 1.0' in metrics

        await close_all(socket, [*ann, *bob, *nobody, *children])
        await load_becomes(server, {"maze": {"ann": 1}})
        await close_all(socket, maze)
        await load_becomes(server, {})

    load = ServerLoad.model_validate_json(await text(server, "/v1/load"))
    assert (load.max_sessions, load.draining) == (300, False)


async def test_sessions_of_a_dead_shard_leave_the_load(server: EnvServer) -> None:
    async with socket_to(server) as socket:
        ids = await opened(socket, 2, owner="ann")
        await load_becomes(server, {"troublesome": {"ann": 2}})

        await socket.send(encode(RequestFrame(1, "step", ids[0], {"index": 0, "action": "die"})))
        await replies(socket, 1)

        await load_becomes(server, {"troublesome": {"ann": 1}})
        await close_all(socket, ids[1:])


async def test_array_of_frames_is_answered_frame_by_frame_in_few_messages(server: EnvServer) -> None:
    async with socket_to(server) as socket:
        ids = await opened(socket, 200)
        trace = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"

        await socket.send(
            encode(
                [RequestFrame(n, "step", each, {"index": 0, "action": f"a{n}"}, trace) for n, each in enumerate(ids)]
            )
        )
        found, messages = await replies(socket, 200)

        assert [found[n].ok["observation"] for n in range(200)] == [f"step 1: a{n}" for n in range(200)]
        assert messages < 60, "what is ready at once goes out at once"
        await close_all(socket, ids)


async def test_failure_is_logged_with_the_trace_of_its_frame(server: EnvServer) -> None:
    trace = "00-" + "5" * 32 + "-" + "6" * 16 + "-01"
    async with socket_to(server) as socket:
        (session_id,) = await opened(socket)

        await socket.send(encode(RequestFrame(1, "step", session_id, {"index": 0, "action": "raise"}, trace)))
        await replies(socket, 1)

    (line,) = [line for line in server.log.splitlines() if "environment.failed" in line and session_id in line]
    assert json.loads(line)["traceparent"] == trace


async def test_lone_answer_is_no_array(server: EnvServer) -> None:
    async with socket_to(server) as socket:
        await socket.send(encode([RequestFrame(5, "get", "nonsense")]))

        answer = msgspec.msgpack.decode(await socket.recv(decode=False))

        assert (answer["id"], answer["problem"]["type"]) == (5, "/problems/unknown-session")


async def test_large_answers_are_split_into_messages_below_the_limit(tmp_path: Path) -> None:
    with EnvServer(tmp_path, ENV_FILE, max_observation_chars=100_000) as server:
        async with socket_to(server) as socket:
            ids = await opened(socket, 100)
            await socket.send(
                encode([RequestFrame(n, "step", each, {"index": 0, "action": "big"}) for n, each in enumerate(ids)])
            )

            count = total = 0
            async with asyncio.timeout(30):
                while count < 100:
                    data = await socket.recv(decode=False)
                    assert len(data) <= MAX_FRAME_BYTES
                    total += len(data)
                    count += len(taken) if isinstance(taken := _decode_replies(data), list) else 1
            assert total > 2 * MAX_FRAME_BYTES


@pytest.mark.parametrize("data", [encode([]), encode([1]), encode([{"id": 1}]), encode([[{"id": 1, "op": "get"}]])])
async def test_bad_array_is_refused_as_a_whole(server: EnvServer, data: bytes) -> None:
    async with socket_to(server) as socket:
        await socket.send(data)
        await socket.send(encode(RequestFrame(7, "get", "nonsense")))

        answers: dict[int, ReplyFrame] = {}
        while 7 not in answers:
            answers |= (await replies(socket, 1))[0]

        assert set(answers) <= {-1, 7}
        if data != encode([]):
            assert answers[-1].problem is not None
            assert answers[-1].problem["status"] == 422


async def stepping(server: EnvServer, *, steps: int = 30) -> None:
    """A well-behaved neighbour: every step is answered in time."""
    async with socket_to(server) as socket:
        (session_id,) = await opened(socket)
        for index in range(steps):
            await socket.send(encode(RequestFrame(index, "step", session_id, {"index": index, "action": "go"})))
            async with asyncio.timeout(5):
                assert _decode_replies(await socket.recv(decode=False))
        await close_all(socket, [session_id])


async def test_message_over_the_limit_costs_its_sender_the_socket_alone(server: EnvServer) -> None:
    earlier = len(server.log)
    async with socket_to(server) as bad, asyncio.TaskGroup() as tasks:
        neighbour = tasks.create_task(stepping(server))
        with contextlib.suppress(ConnectionClosed):
            await bad.send(b"\xc4" + b"x" * 5_000_000)
        with pytest.raises(ConnectionClosed) as closed:
            await bad.recv()
        await neighbour

    # Where the server hangs up while bytes are still on their way, the close frame may be lost with them.
    assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert "Traceback" not in server.log[earlier:]


async def test_flood_of_garbage_and_of_frames_leaves_others_in_peace(server: EnvServer) -> None:
    flood = encode([RequestFrame(n, "get", "nonsense") for n in range(60_000)])
    assert len(flood) < MAX_FRAME_BYTES
    async with socket_to(server) as garbage, socket_to(server) as many:

        async def throw(socket: ClientConnection, data: bytes, times: int) -> None:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(times):
                    await socket.send(data)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(throw(garbage, b"\xc1", 2000))
            tasks.create_task(throw(many, flood, 1))
            tasks.create_task(stepping(server))
            tasks.create_task(replies(many, 60_000))

        async def read_on() -> None:
            while True:
                await garbage.recv(decode=False)

        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(read_on(), 30)


async def test_socket_that_never_reads_is_held_back(server: EnvServer) -> None:
    """Its requests wait unread once a few megabytes of answers do; the server's memory does not grow with them."""
    process = psutil.Process(server.pid)
    before = process.memory_info().rss
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    payload = encode([RequestFrame(n, "get", "nonsense") for n in range(1000)])
    frame = b"\x82\xfe" + len(payload).to_bytes(2, "big") + b"\0\0\0\0" + payload

    async def flood() -> None:
        for _ in range(2000):  # 2 million answers of 170 bytes
            writer.write(frame)
            await writer.drain()

    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(flood(), 2)
        await stepping(server)

        assert process.memory_info().rss - before < 100_000_000
    finally:
        writer.transport.abort()
    await stepping(server)


async def test_socket_that_leaves_too_many_answers_is_closed_with_one_line(tmp_path: Path) -> None:
    with EnvServer(tmp_path, ENV_FILE, max_observation_chars=100_000, max_outbox_mb=20) as server:
        async with connect(f"ws://127.0.0.1:{server.port}/v1/stream", max_queue=1, max_size=None) as lazy:
            (session_id,) = await opened(lazy)
            await lazy.send(encode(RequestFrame(1, "step", session_id, {"index": 0, "action": "big"})))
            await replies(lazy, 1)
            await lazy.send(encode([RequestFrame(n, "get", session_id) for n in range(500)]))  # 50 MB of answers

            async with asyncio.timeout(20):
                while "stream.overflowed" not in server.log:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            await stepping(server)

            with pytest.raises(ConnectionClosed):
                await replies(lazy, 500)
        assert server.log.count("stream.overflowed") == 1
        assert "Traceback" not in server.log


async def test_drain_serves_what_is_open_opens_nothing_and_ends_with_the_last_session(tmp_path: Path) -> None:
    with EnvServer(tmp_path, ENV_FILE, shards=2, drain_s=60) as server:
        async with socket_to(server) as socket, httpx.AsyncClient(base_url=server.url) as http:
            ids = await opened(socket, 2, owner="ann")
            assert server.signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while (ready := await http.get("/readyz")).status_code == 200:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)

            assert (ready.status_code, ready.json()["type"]) == (503, "/problems/unavailable")
            assert "draining" in ready.json()["detail"]
            assert (await http.get("/healthz")).status_code == 200
            assert (await http.get("/v1/load")).json()["draining"] is True
            refused = await http.post("/v1/sessions", json={"env": "troublesome", "task_index": 0})
            assert (refused.status_code, refused.json()["type"]) == (503, "/problems/unavailable")
            assert "draining" in refused.json()["detail"]
            for index in range(3):
                await socket.send(encode(RequestFrame(index, "step", ids[0], {"index": index, "action": "go"})))
                assert (await replies(socket, 1))[0][index].ok["index"] == index
            await close_all(socket, ids)

        assert server.wait(10) == 0

    events = {json.loads(line)["event"]: json.loads(line) for line in server.log.splitlines() if line.startswith("{")}
    assert events["server.draining"]["slots"] == 2
    assert events["server.drained"]["slots"] == 0
    assert "Traceback" not in server.log


async def test_drain_ends_after_its_time(tmp_path: Path) -> None:
    with EnvServer(tmp_path, ENV_FILE, drain_s=0.5) as server:
        async with socket_to(server) as socket:
            await opened(socket)
            server.signal(signal.SIGTERM)

            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 15)
        assert server.wait(10) == 0


def open_one(server: EnvServer) -> None:
    httpx.post(f"{server.url}/v1/sessions", json={"env": "troublesome", "task_index": 0}).raise_for_status()


@pytest.mark.parametrize(
    "signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT,), (signal.SIGTERM, signal.SIGINT)]
)
async def test_whoever_asks_again_does_not_wait_for_the_drain(
    tmp_path: Path, signals: tuple[signal.Signals, ...]
) -> None:
    with EnvServer(tmp_path, ENV_FILE, drain_s=300) as server:
        open_one(server)
        server.signal(signals[0])
        if len(signals) > 1:
            async with asyncio.timeout(10):
                while "server.draining" not in server.log:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            server.signal(signals[1])

        assert server.wait(10) == 0


def test_without_drain_the_end_is_at_once(tmp_path: Path) -> None:
    with EnvServer(tmp_path, ENV_FILE) as server:
        open_one(server)

        assert server.stop(signal.SIGTERM) == 0
        assert "server.draining" not in server.log
