"""`WS /v1/stream`: many sessions on one socket, answered as the shards answer."""

import asyncio
from functools import partial
from typing import Final

import msgspec
import structlog
from fastapi import APIRouter, WebSocket
from gymfleet_contracts.frames import MAX_FRAME_BYTES, MAX_UNREADABLE, NO_REQUESTS, Op, ReplyFrame
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import InvalidRequest
from starlette.websockets import WebSocketDisconnect, WebSocketState

from gymfleet_env_server.routes.batches import batches
from gymfleet_env_server.shards.handle import Result, Stated
from gymfleet_env_server.shards.pool import EMPTY, ShardPool

MAX_IN_FLIGHT: Final = 16_384
"""Calls in flight of one socket; more wait unread, so that a flood burdens only its sender."""
PAUSE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of answers that a client has not read; beyond that, its requests wait unread."""
UNREADABLE: Final = -1
"""The id of an answer to a frame whose own id could not be read."""
_TURN: Final = 512
"""Frames of one message that are processed before other sockets get their turn."""

router = APIRouter()
log = structlog.get_logger()
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """`frames.RequestFrame` with its body left encoded: the shard decodes it."""

    id: int
    op: str
    session_id: str = ""
    body: msgspec.Raw = EMPTY
    trace: str = ""


_decode_requests: Final = msgspec.msgpack.Decoder(_Request | list[_Request]).decode


class _Connection:
    """One socket, with its calls in flight and its unsent answers."""

    def __init__(self, socket: WebSocket, pool: ShardPool) -> None:
        self._socket = socket
        self._pool = pool
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._wake = asyncio.Event()
        self._in_flight = 0
        self._room = asyncio.Event()
        self._open = True
        self._unreadable = 0
        self._overflow = asyncio.Event()

    async def run(self) -> bool:
        """Serve until the caller leaves; return False if it does not read its answers."""
        overflow = asyncio.create_task(self._overflow.wait())
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        try:
            done, _ = await asyncio.wait([*tasks, overflow], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open = False
            for task in (*tasks, overflow):
                task.cancel()
            await asyncio.gather(*tasks, overflow, return_exceptions=True)
        if overflow in done:
            client = self._socket.client
            log.warning("stream.overflowed", client=client and client.host, waiting_bytes=self._outbox_bytes)
            return False
        for task in done:
            task.result()
        return True

    async def _read(self) -> None:
        while True:
            await self._until_room()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            try:
                if data is None:
                    raise msgspec.DecodeError("frames are binary msgpack, not text")
                found = _decode_requests(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._unreadable += 1
                if self._unreadable > MAX_UNREADABLE:
                    await self._socket.close(*NO_REQUESTS)
                    return
                self._problem(UNREADABLE, InvalidRequest(f"the frame is not a request: {error}"))
                await asyncio.sleep(0)  # garbage is refused faster than it arrives: let other sockets have a turn
                continue
            self._unreadable = 0
            requests = found if isinstance(found, list) else [found]
            for place, request in enumerate(requests, start=1):
                self._dispatch(request)
                if place % _TURN == 0:
                    await asyncio.sleep(0)
                await self._until_room()

    async def _until_room(self) -> None:
        while self._in_flight >= MAX_IN_FLIGHT or self._outbox_bytes > PAUSE_BYTES:
            self._room.clear()
            await self._room.wait()

    def _dispatch(self, request: _Request) -> None:
        self._in_flight += 1
        if request.op in _OPS:
            done = partial(self._done, request.id, request.op)
            self._pool.submit(request.op, request.session_id, request.body, done, request.trace)
        else:
            error = InvalidRequest(f"unknown op {request.op[:32]!r}; known: {', '.join(Op)}")
            self._done(request.id, request.op, error)

    def _done(self, frame_id: int, op: str, result: Result) -> None:
        self._in_flight -= 1
        if not self._open:
            self._discard(op, result)
        elif isinstance(result, ServiceError):
            self._problem(frame_id, result)
        elif isinstance(result, Stated):
            self._send(_encode(ReplyFrame(frame_id, ok=result.ok, state=result.state)))
        else:
            self._send(_encode(ReplyFrame(frame_id, ok=result)))

    def _problem(self, frame_id: int, error: ServiceError) -> None:
        problem = error.problem().model_dump(mode="json", exclude_none=True)
        self._send(_encode(ReplyFrame(frame_id, problem=problem)))

    def _send(self, data: bytes) -> None:
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._wake.set()
        if self._outbox_bytes > self._pool.max_outbox_bytes:
            self._overflow.set()

    def _discard(self, op: str, result: Result) -> None:
        """Close sessions that were made for a caller that has left: nobody knows their ids."""
        if isinstance(result, ServiceError) or op not in (Op.OPEN, Op.FORK):
            return
        made = _decode(result.ok if isinstance(result, Stated) else result)
        for session in made if isinstance(made, list) else [made]:
            self._pool.submit(Op.CLOSE, session["session_id"], EMPTY, lambda _: None)

    async def _write(self) -> None:
        """Send the collected answers, in as few messages as possible."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            frames, self._outbox = self._outbox, []
            for size, message in batches(frames, MAX_FRAME_BYTES):
                await self._socket.send_bytes(message)
                self._outbox_bytes -= size
            if self._in_flight < MAX_IN_FLIGHT and self._outbox_bytes <= PAUSE_BYTES:
                self._room.set()


_OPS: Final = frozenset(str(op) for op in Op)


@router.websocket("/v1/stream")
async def stream(socket: WebSocket) -> None:
    """Frames in, frames out; see `gymfleet_contracts.frames`."""
    await socket.accept()
    try:
        taken = await _Connection(socket, socket.app.state.pool).run()
    except WebSocketDisconnect:
        return
    if not taken:  # no room for a close frame either: the transport is closed when this returns
        return
    if socket.application_state is WebSocketState.CONNECTED and socket.client_state is WebSocketState.CONNECTED:
        await socket.close()
