"""`WS /v1/stream`: many sessions on one socket, answered as the shards answer."""

import asyncio
from collections import deque
from typing import Final

import msgspec
from fastapi import APIRouter, WebSocket
from gymfleet_contracts.frames import Op, ReplyFrame
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_problems import InvalidRequest
from starlette.websockets import WebSocketDisconnect, WebSocketState

from gymfleet_envs.runtime.pool import EMPTY, ShardPool

MAX_IN_FLIGHT: Final = 16_384
"""Calls of one socket; more wait unread, so that a flood stays with its sender."""
UNREADABLE: Final = -1
"""The id of an answer to a frame whose own id could not be read."""

router = APIRouter()
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """`frames.RequestFrame` with its body left encoded: the shard takes it apart."""

    id: int
    op: str
    session_id: str = ""
    body: msgspec.Raw = EMPTY


_decode_request: Final = msgspec.msgpack.Decoder(_Request).decode


class _Connection:
    """One socket: its calls in flight and its answers on their way out."""

    def __init__(self, socket: WebSocket, pool: ShardPool) -> None:
        self._socket = socket
        self._pool = pool
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._in_flight = 0
        self._room = asyncio.Event()
        self._open = True

    async def run(self) -> None:
        """Serve until the caller goes away."""
        writer = asyncio.create_task(self._write())
        try:
            await self._read()
        finally:
            self._open = False
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                self._problem(UNREADABLE, InvalidRequest("frames are binary msgpack, not text"))
                continue
            try:
                request = _decode_request(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._problem(UNREADABLE, InvalidRequest(f"the frame is not a request: {error}"))
                continue
            self._dispatch(request)
            if self._in_flight >= MAX_IN_FLIGHT:
                self._room.clear()
                await self._room.wait()

    def _dispatch(self, request: _Request) -> None:
        self._in_flight += 1

        def done(result: msgspec.Raw | ServiceError) -> None:
            self._in_flight -= 1
            self._room.set()
            if not self._open:
                self._discard(request.op, result)
            elif isinstance(result, ServiceError):
                self._problem(request.id, result)
            else:
                self._send(_encode(ReplyFrame(request.id, ok=result)))

        if request.op in _OPS:
            self._pool.submit(request.op, request.session_id, request.body, done)
        else:
            done(InvalidRequest(f"unknown op {request.op[:32]!r}; known: {', '.join(Op)}"))

    def _problem(self, frame_id: int, error: ServiceError) -> None:
        problem = error.problem().model_dump(mode="json", exclude_none=True)
        self._send(_encode(ReplyFrame(frame_id, problem=problem)))

    def _send(self, data: bytes) -> None:
        self._outbox.append(data)
        self._wake.set()

    def _discard(self, op: str, result: msgspec.Raw | ServiceError) -> None:
        """Close sessions that were made for a caller who has gone: nobody knows their ids."""
        if isinstance(result, ServiceError) or op not in (Op.OPEN, Op.FORK):
            return
        made = _decode(result)
        for session in made if isinstance(made, list) else [made]:
            self._pool.submit(Op.CLOSE, session["session_id"], EMPTY, lambda _: None)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                await self._socket.send_bytes(self._outbox.popleft())


_OPS: Final = frozenset(str(op) for op in Op)


@router.websocket("/v1/stream")
async def stream(socket: WebSocket) -> None:
    """Frames in, frames out; see `gymfleet_contracts.frames`."""
    await socket.accept()
    try:
        await _Connection(socket, socket.app.state.pool).run()
    except WebSocketDisconnect:
        return
    if socket.application_state is WebSocketState.CONNECTED and socket.client_state is WebSocketState.CONNECTED:
        await socket.close()
