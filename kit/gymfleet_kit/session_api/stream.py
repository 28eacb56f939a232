"""`WS /v1/stream`: many sessions on one socket; each frame is answered as soon as its answer is ready.

A client that floods, or does not read its answers, burdens only itself: its socket is not read
until there is room.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import structlog
from fastapi import WebSocket
from gymfleet_contracts.frames import (
    FINISHED,
    MAX_UNREADABLE,
    NO_REQUESTS,
    Op,
    RawReply,
    RawRequest,
    check_count,
    join_frames,
    split_frames,
)
from starlette.websockets import WebSocketDisconnect

from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_api.calls import Done, Result, Stated, made_sessions
from gymfleet_kit.session_problems import InvalidRequest

UNREADABLE: Final = -1
"""The id of an answer to a frame whose own id could not be read."""
PAUSE_BYTES: Final = 4 * 1024 * 1024
"""The limit of answers that a client has not read; beyond it, its requests wait unread."""
POLICY_VIOLATION: Final = 1008
_TURN: Final = 512
"""Frames of one message to process before other sockets get their turn."""
_OPS: Final = frozenset(str(op) for op in Op)
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode: Final = msgspec.msgpack.Decoder(RawRequest).decode
_decode_all: Final = msgspec.msgpack.Decoder(RawRequest | list[RawRequest]).decode
_encode: Final = msgspec.msgpack.Encoder().encode
Submit = Callable[[RawRequest, Done], None]
log = structlog.get_logger()


class SessionSocket:
    """One client's socket, with its calls in progress and its unsent answers.

    Args:
        submit: starts a call, and calls `done` once, now or later, even after the client has left.
        max_calls: the most calls in progress; more wait unread.
        max_outbox_bytes: unread answers at which the client is cut off: the calls in progress may reach this size.
        is_welcome: called before each message; the socket is closed when it returns False.
    """

    def __init__(
        self,
        socket: WebSocket,
        submit: Submit,
        *,
        max_calls: int,
        max_outbox_bytes: int,
        is_welcome: Callable[[], bool] = lambda: True,
    ) -> None:
        self._socket = socket
        self._submit = submit
        self._max_calls = max_calls
        self._max_outbox_bytes = max_outbox_bytes
        self._is_welcome = is_welcome
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._in_progress = 0
        self._unreadable = 0
        self._open = True
        self._finishing = False
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()
        self._overflow = asyncio.Event()

    async def serve(self) -> None:
        """Answer frames until the client leaves.

        Calls in progress are completed even then, and the sessions that they create are closed.
        """
        parts = [asyncio.create_task(part) for part in (self._read(), self._write(), self._overflow.wait())]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open = False
            self._progress.set()
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
        if self._overflow.is_set():  # no room for a close frame either: the caller of this closes the transport
            client = self._socket.client
            log.warning("stream.overflowed", client=client and client.host, waiting_bytes=self._outbox_bytes)
            return
        for part in done:
            if not isinstance(part.exception(), WebSocketDisconnect):
                part.result()

    async def finish(self) -> None:
        """Accept no more calls, answer the accepted ones, and close the socket with `FINISHED`."""
        self._finishing = True
        while self._open and (self._in_progress or self._outbox_bytes):
            self._progress.clear()
            await self._progress.wait()
        if self._open:
            await self._close(FINISHED, "the server is on its way out; ask another")

    async def _close(self, code: int, reason: str) -> None:
        self._open = False
        with suppress(WebSocketDisconnect, RuntimeError):  # the client was quicker
            await self._socket.close(code, reason)

    async def _read(self) -> None:
        while True:
            await self._until_room()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            if not self._is_welcome():
                await self._close(POLICY_VIOLATION, "this key is no longer valid")
                return
            for place, request in enumerate(_requests(message.get("bytes")), start=1):
                if self._finishing:
                    break
                if isinstance(request, InvalidRequest):
                    self._unreadable += 1
                    if self._unreadable > MAX_UNREADABLE:
                        await self._close(*NO_REQUESTS)
                        return
                    self._problem(UNREADABLE, request)
                    await asyncio.sleep(0)  # refused faster than it arrives: let other sockets have a turn
                    continue
                self._unreadable = 0
                self._start(request)
                if place % _TURN == 0:
                    await asyncio.sleep(0)
                if self._is_full():
                    await self._until_room()

    def _is_full(self) -> bool:
        return self._in_progress >= self._max_calls or self._outbox_bytes > PAUSE_BYTES

    async def _until_room(self) -> None:
        while self._is_full():
            self._progress.clear()
            await self._progress.wait()

    def _start(self, request: RawRequest) -> None:
        self._in_progress += 1
        if request.op in _OPS:
            self._submit(request, partial(self._done, request))
        else:
            self._done(request, InvalidRequest(f"unknown op {request.op[:32]!r}; known: {', '.join(Op)}"))

    def _done(self, request: RawRequest, result: Result) -> None:
        self._in_progress -= 1
        self._progress.set()
        if not self._open:
            self._discard(request.op, result)
        elif isinstance(result, ServiceError):
            self._problem(request.id, result)
        elif isinstance(result, Stated):
            self._send(RawReply(request.id, ok=result.ok, state=result.state, replies=result.replies))
        else:
            self._send(RawReply(request.id, ok=result))

    def _discard(self, op: str, result: Result) -> None:
        """Close sessions that were created for a client that has left: nobody has their ids."""
        if isinstance(result, ServiceError) or op not in (Op.OPEN, Op.FORK):
            return
        for session_id in made_sessions(result.ok if isinstance(result, Stated) else result):
            self._submit(RawRequest(0, Op.CLOSE, session_id), _note_failure)

    def _problem(self, frame_id: int, error: ServiceError) -> None:
        problem = error.problem().model_dump(mode="json", exclude_none=True)
        self._send(RawReply(frame_id, problem=msgspec.Raw(_encode(problem))))

    def _send(self, reply: RawReply) -> None:
        frame = _encode(reply)
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        self._wake.set()
        if self._outbox_bytes > self._max_outbox_bytes:
            self._overflow.set()

    async def _write(self) -> None:
        """Send the answers; all answers of one turn of the event loop share a message."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox and self._open:
                size, message = join_frames(self._outbox)
                await self._socket.send_bytes(message)
                self._outbox_bytes -= size
                self._progress.set()


def _note_failure(result: Result) -> None:
    if isinstance(result, ServiceError):
        log.info("session.not_closed", reason=result.detail)


def _requests(data: bytes | None) -> Iterable[RawRequest | InvalidRequest]:
    """Return the requests of one message, with an error for each frame that is not a request."""
    if data is None:
        return (InvalidRequest("frames are binary msgpack, not text"),)
    try:
        check_count(data)
        found = _decode_all(data)
    except _ERRORS:
        return _one_by_one(data)
    return found if isinstance(found, list) else (found,)


def _one_by_one(data: bytes) -> Iterator[RawRequest | InvalidRequest]:
    try:
        frames = split_frames(data)
    except _ERRORS as error:
        yield InvalidRequest(f"the message is no frame and no array of frames: {error}")
        return
    for frame in frames:
        try:
            yield _decode(frame)
        except _ERRORS as error:
            yield InvalidRequest(f"the frame is not a request: {error}")
