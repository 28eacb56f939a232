"""`WS /v1/stream`: many sessions on one socket, forwarded frame by frame."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from gymfleet_client.multiplex import RawReply, RawRequest, join_frames, split_frames
from gymfleet_contracts.frames import FINISHED, MAX_UNREADABLE, NO_REQUESTS, Op
from gymfleet_kit.problem_handlers import problem_response
from gymfleet_kit.problems import ServiceError, internal_problem
from gymfleet_kit.session_problems import InvalidRequest
from gymfleet_kit.trace import enter_trace

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.errors import Forbidden, Unauthorized, Unavailable
from gymfleet_env_gateway.state import Gateway, get_gateway

log = structlog.get_logger()

router = APIRouter()

UNREADABLE: Final = -1
"""The id of an answer to a frame whose own id could not be read."""
POLICY_VIOLATION: Final = 1008
MAX_UNSENT: Final = 1024
"""Number of answers that may wait for a client to read them; beyond it, its requests are not read either."""
_NO_BODY: Final = msgspec.Raw(msgspec.msgpack.encode({}))
_MAKES_SESSIONS: Final = (Op.OPEN, Op.FORK)
_decode: Final = msgspec.msgpack.Decoder(RawRequest).decode
_decode_any: Final = msgspec.msgpack.Decoder().decode
_encode: Final = msgspec.msgpack.Encoder().encode


@router.websocket("/v1/stream")
async def stream(websocket: WebSocket) -> None:
    """Answer each request frame when its answer is there, in any order."""
    gateway = get_gateway(websocket)
    try:
        tenant = await gateway.access.admit(websocket)
    except ServiceError as error:
        await websocket.send_denial_response(problem_response(error.problem(), error.headers()))
        return
    if gateway.streams.finishing:
        problem = Unavailable("this gateway is on its way out").problem()
        await websocket.send_denial_response(problem_response(problem))
        return
    await websocket.accept()
    client = _Stream(websocket, gateway, tenant)
    gateway.streams.add(client)
    try:
        await client.serve()
    finally:
        gateway.streams.discard(client)


class _Stream:
    """One client's socket."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, tenant: Tenant) -> None:
        self._websocket = websocket
        self._proxy = gateway.proxy
        self._access = gateway.access
        self._generation = gateway.access.generation
        self._tenant = tenant
        self._max_calls = gateway.settings.max_calls_per_socket
        self._calls: set[asyncio.Task[None]] = set()
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()
        self._open = True
        self._finishing = False
        self._sending = False
        self._unreadable = 0

    async def serve(self) -> None:
        """Read until the client leaves. Calls in flight are completed, and the sessions that they make are closed."""
        writer = asyncio.create_task(self._write())
        try:
            while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                if self._generation != self._access.generation and not self._may_stay():
                    await self._websocket.close(POLICY_VIOLATION, "this key is no longer valid")
                    break
                await self._accept(message.get("bytes"))
                if self._unreadable > MAX_UNREADABLE:
                    await self._websocket.close(*NO_REQUESTS)
                    break
        finally:
            self._open = False
            self._progress.set()
            writer.cancel()
            await asyncio.wait([writer])

    async def finish(self) -> None:
        """Accept no more calls, answer those that were accepted, and close the socket with `FINISHED`."""
        self._finishing = True
        while self._open and (self._calls or self._outbox or self._sending):
            self._progress.clear()
            await self._progress.wait()
        if self._open:
            with suppress(WebSocketDisconnect, RuntimeError):
                await self._websocket.close(FINISHED, "the gateway is on its way out; ask another")

    def _may_stay(self) -> bool:
        """Check the key again after the tenants have changed: it may be gone, or its tenant's limits may be new."""
        self._generation = self._access.generation
        try:
            self._tenant = self._access.tenant(self._websocket)
        except (Unauthorized, Forbidden):
            return False
        return True

    async def _accept(self, data: bytes | None) -> None:
        if data is None:
            self._refuse("frames are binary msgpack, not text")
            return
        try:
            frames = split_frames(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(f"the message is no frame and no array of frames: {error}")
            return
        for frame in frames:
            # Until there is room the socket is not read: a flood, or answers that are not read, burden only the sender.
            while len(self._calls) >= self._max_calls or len(self._outbox) >= MAX_UNSENT:
                self._progress.clear()
                await self._progress.wait()
            if self._finishing:
                return
            try:
                request = _decode(frame)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                self._refuse(f"the frame is not a request: {error}")
                if self._unreadable > MAX_UNREADABLE:
                    return
                continue
            self._unreadable = 0
            call = asyncio.create_task(self._answer(request))
            self._calls.add(call)
            call.add_done_callback(self._done)

    def _refuse(self, why: str) -> None:
        """Answer a message that is not a request; not forever, since each answer is larger than the message."""
        self._unreadable += 1
        if self._unreadable <= MAX_UNREADABLE:
            self._send(_failed(UNREADABLE, InvalidRequest(why)))

    def _done(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._progress.set()

    async def _answer(self, frame: RawRequest) -> None:
        if frame.trace:
            enter_trace(frame.trace)
        try:
            if frame.op == Op.OPEN:
                ok = await self._proxy.open(self._tenant, frame.body)
            else:
                ok = await self._proxy.call(self._tenant, frame.op, frame.session_id, frame.body)
        except ServiceError as error:
            self._send(_failed(frame.id, error))
        except Exception:
            log.exception("frame.failed", op=frame.op)
            self._send(RawReply(frame.id, problem=_raw(internal_problem().model_dump(exclude_none=True))))
        else:
            if self._open:
                self._send(RawReply(frame.id, ok=ok))
            elif frame.op in _MAKES_SESSIONS:
                await self._discard(ok)

    def _send(self, reply: RawReply) -> None:
        if self._open:
            self._outbox.append(_encode(reply))
            self._wake.set()

    async def _write(self) -> None:
        """Send the answers; all those of one turn of the event loop share a message."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    self._sending = True
                    await self._websocket.send_bytes(join_frames(self._outbox))
                    self._sending = False
                    self._progress.set()
        except (WebSocketDisconnect, RuntimeError):  # the client is gone: the reader learns of it as well
            self._open = False
            self._outbox.clear()
            self._progress.set()

    async def _discard(self, ok: msgspec.Raw) -> None:
        """Close sessions that were made for a client that has left: nobody knows their ids."""
        made = _decode_any(ok)
        for session in made if isinstance(made, list) else [made]:
            try:
                await self._proxy.call(self._tenant, Op.CLOSE, session["session_id"], _NO_BODY)
            except ServiceError as error:
                log.info("session.not_closed", reason=error.detail)


def _failed(frame_id: int, error: ServiceError) -> RawReply:
    return RawReply(frame_id, problem=_raw(error.problem().model_dump(mode="json", exclude_none=True)))


def _raw(body: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(body))
