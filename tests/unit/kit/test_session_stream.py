"""One client's socket of `WS /v1/stream`, over calls that answer when the test says so."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI, WebSocket
from gymfleet_contracts.frames import (
    FINISHED,
    MAX_UNREADABLE,
    NO_REQUESTS,
    Op,
    RawRequest,
    ReplyFrame,
    RequestFrame,
    decode_reply,
    encode,
    split_frames,
)
from gymfleet_kit.session_api.calls import Done, encode_body
from gymfleet_kit.session_api.stream import UNREADABLE, SessionSocket
from starlette.testclient import TestClient, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

GARBAGE = encode({"id": "seven"})


class Calls:
    """Answers `get` with its session id at once, and all others when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[RawRequest, Done]] = []
        self.closed: list[str] = []
        self.arrived = threading.Semaphore(0)
        self.left = threading.Event()
        self.socket: SessionSocket | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def submit(self, request: RawRequest, done: Done) -> None:
        if request.op == Op.GET:
            done(encode_body({"session_id": request.session_id}))
        elif request.op == Op.CLOSE:
            self.closed.append(request.session_id)
            done(encode_body({}))
        else:
            self.waiting.append((request, done))
        self.arrived.release()

    def answer(self, body: object) -> None:
        """To the call that has waited longest."""
        assert self.loop is not None
        _, done = self.waiting.pop(0)
        self.loop.call_soon_threadsafe(done, encode_body(body))

    def run(self, work: Any) -> "asyncio.Future[Any]":
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.loop)  # type: ignore[return-value]


@contextmanager
def connected(calls: Calls, **settings: Any) -> Iterator[WebSocketTestSession]:
    app = FastAPI()
    limits = {"max_calls": 100, "max_outbox_bytes": 1 << 20, **settings}

    @app.websocket("/")
    async def stream(websocket: WebSocket) -> None:
        await websocket.accept()
        calls.loop = asyncio.get_running_loop()
        calls.socket = SessionSocket(websocket, calls.submit, **limits)
        await calls.socket.serve()
        calls.left.set()

    with TestClient(app) as client, client.websocket_connect("/") as socket:
        yield socket
        socket.close()
        assert calls.left.wait(10)


def replies(socket: WebSocketTestSession, count: int) -> list[ReplyFrame]:
    found: deque[ReplyFrame] = deque()
    while len(found) < count:
        found += map(decode_reply, split_frames(socket.receive_bytes()))
    return list(found)


def get(number: int) -> RequestFrame:
    return RequestFrame(number, Op.GET, f"s{number}")


def test_a_frame_that_is_no_request_takes_nothing_from_its_neighbours() -> None:
    with connected(Calls()) as socket:
        socket.send_bytes(b"\x94" + encode(get(1)) + GARBAGE + encode(RequestFrame(2, "fly")) + encode(get(3)))
        first, garbage, unknown, last = replies(socket, 4)

    assert (first.id, first.ok) == (1, {"session_id": "s1"})
    assert (last.id, last.ok) == (3, {"session_id": "s3"})
    assert garbage.id == UNREADABLE
    assert garbage.problem is not None
    assert "the frame is not a request" in garbage.problem["detail"]
    assert unknown.id == 2
    assert unknown.problem is not None
    assert "unknown op 'fly'; known: open, step" in unknown.problem["detail"]


@pytest.mark.parametrize("message", [GARBAGE, b"", b"\xdc\xff\xff", b"\x91" * 5000])
def test_a_flood_of_garbage_is_answered_for_a_while_and_then_cut_off(message: bytes) -> None:
    with connected(Calls()) as socket:
        socket.send_bytes(message)
        socket.send_bytes(encode(get(1)))
        assert [reply.id for reply in replies(socket, 2)] == [UNREADABLE, 1], "one is forgiven"
        for _ in range(MAX_UNREADABLE + 1):
            socket.send_bytes(message)
        assert [reply.id for reply in replies(socket, MAX_UNREADABLE)] == [UNREADABLE] * MAX_UNREADABLE
        with pytest.raises(WebSocketDisconnect) as caught:
            socket.receive_bytes()

    assert (caught.value.code, caught.value.reason) == NO_REQUESTS


def test_sessions_made_for_a_client_that_has_left_are_closed() -> None:
    calls = Calls()
    with connected(calls) as socket:
        for number, op in enumerate((Op.OPEN, Op.FORK, Op.STEP)):
            socket.send_bytes(encode(RequestFrame(number, op, "s", {})))
            assert calls.arrived.acquire(timeout=10)
        socket.close()
        assert calls.left.wait(10)
        calls.answer({"session_id": "opened"})
        calls.answer([{"session_id": "one"}, {"session_id": "two"}])
        calls.answer({"observation": "late"})
        for _ in range(3):
            assert calls.arrived.acquire(timeout=10)

    assert calls.closed == ["opened", "one", "two"]


def test_beyond_its_calls_in_progress_a_client_is_not_read() -> None:
    calls = Calls()
    with connected(calls, max_calls=2) as socket:
        socket.send_bytes(encode([RequestFrame(number, Op.STEP, "s", {}) for number in range(4)]))
        for _ in range(2):
            assert calls.arrived.acquire(timeout=10)
        assert not calls.arrived.acquire(timeout=0.1)
        calls.answer({"number": 0})
        assert calls.arrived.acquire(timeout=10)
        assert not calls.arrived.acquire(timeout=0.1)
        for number in range(1, 4):
            if number == 2:
                assert calls.arrived.acquire(timeout=10)
            calls.answer({"number": number})
        assert [reply.ok["number"] for reply in replies(socket, 4)] == [0, 1, 2, 3]


def test_answers_beyond_the_limit_cut_the_client_off() -> None:
    calls = Calls()
    with connected(calls, max_outbox_bytes=1000) as socket:
        socket.send_bytes(encode(RequestFrame(1, Op.STEP, "s", {})))
        assert calls.arrived.acquire(timeout=10)
        calls.answer({"observation": "x" * 900})
        assert len(replies(socket, 1)) == 1
        assert not calls.left.is_set()

        socket.send_bytes(encode(RequestFrame(2, Op.STEP, "s", {})))
        assert calls.arrived.acquire(timeout=10)
        calls.answer({"observation": "x" * 1000})
        assert calls.left.wait(10), "without a word: there is no room for one"


def test_a_server_on_its_way_out_answers_what_it_has_accepted() -> None:
    calls = Calls()
    with connected(calls) as socket:
        socket.send_bytes(encode(RequestFrame(1, Op.STEP, "s", {})))
        assert calls.arrived.acquire(timeout=10)
        assert calls.socket is not None
        finishing = calls.run(calls.socket.finish())
        calls.run(asyncio.sleep(0)).result()
        socket.send_bytes(encode(get(2)))
        calls.answer({"observation": "done"})

        assert [(reply.id, reply.ok) for reply in replies(socket, 1)] == [(1, {"observation": "done"})]
        with pytest.raises(WebSocketDisconnect) as caught:
            socket.receive_bytes()
        finishing.result()

    assert caught.value.code == FINISHED
    assert not calls.arrived.acquire(blocking=False), "what came later was not begun"


def test_a_caller_that_is_no_longer_welcome_is_told() -> None:
    welcome = [True]
    with connected(Calls(), is_welcome=lambda: welcome[0]) as socket:
        socket.send_bytes(encode(get(1)))
        assert replies(socket, 1)[0].id == 1
        welcome[0] = False
        socket.send_bytes(encode(get(2)))
        with pytest.raises(WebSocketDisconnect) as caught:
            socket.receive_bytes()

    assert (caught.value.code, caught.value.reason) == (1008, "this key is no longer valid")


def test_a_body_is_left_as_it_came() -> None:
    calls = Calls()
    body = {"index": 3, "action": "north"}
    with connected(calls) as socket:
        socket.send_bytes(encode(RequestFrame(1, Op.STEP, "s", body, "trace")))
        assert calls.arrived.acquire(timeout=10)
        request, _ = calls.waiting[0]

    assert (request.session_id, request.trace) == ("s", "trace")
    assert msgspec.msgpack.decode(request.body) == body
