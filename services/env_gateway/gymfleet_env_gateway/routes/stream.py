"""`WS /v1/stream`: many sessions on one socket, relayed frame by frame."""

import asyncio
from typing import Final

import msgspec
import structlog
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from fastapi.websockets import WebSocketState
from gymfleet_client.multiplex import RawReply, RawRequest
from gymfleet_contracts.frames import Op
from gymfleet_kit.problems import ServiceError, internal_problem
from gymfleet_kit.session_problems import InvalidRequest

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.errors import Unauthorized
from gymfleet_env_gateway.state import Gateway, get_gateway

log = structlog.get_logger()

router = APIRouter()

UNREADABLE: Final = -1
"""The id of an answer to a frame whose own id could not be read."""
POLICY_VIOLATION: Final = 1008
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
        tenant = gateway.access.tenant(websocket)
    except Unauthorized:
        await websocket.close(POLICY_VIOLATION)  # before `accept`: the handshake is answered with 403
        return
    await websocket.accept()
    await _Stream(websocket, gateway, tenant).serve()


class _Stream:
    """One client's socket."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, tenant: Tenant) -> None:
        self._websocket = websocket
        self._relay = gateway.relay
        self._tenant = tenant
        self._max_calls = gateway.settings.max_calls_per_socket
        self._calls: set[asyncio.Task[None]] = set()
        self._open = True

    async def serve(self) -> None:
        """Read until the client goes. Calls in flight are carried to their end: sessions they make are closed."""
        try:
            while (message := await self._websocket.receive())["type"] != "websocket.disconnect":
                if len(self._calls) >= self._max_calls:
                    await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
                await self._accept(message.get("bytes"))
        finally:
            self._open = False

    async def _accept(self, data: bytes | None) -> None:
        if data is None:
            await self._send(_failed(UNREADABLE, InvalidRequest("frames are binary msgpack, not text")))
            return
        try:
            frame = _decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            await self._send(_failed(UNREADABLE, InvalidRequest(f"the frame is not a request: {error}")))
            return
        call = asyncio.create_task(self._answer(frame))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _answer(self, frame: RawRequest) -> None:
        try:
            if frame.op == Op.OPEN:
                ok = await self._relay.open(self._tenant, frame.body)
            else:
                ok = await self._relay.call(self._tenant, frame.op, frame.session_id, frame.body)
        except ServiceError as error:
            await self._send(_failed(frame.id, error))
        except Exception:
            log.exception("frame.failed", op=frame.op)
            await self._send(RawReply(frame.id, problem=_raw(internal_problem().model_dump(exclude_none=True))))
        else:
            if not await self._send(RawReply(frame.id, ok=ok)) and frame.op in _MAKES_SESSIONS:
                await self._discard(ok)

    async def _send(self, reply: RawReply) -> bool:
        """False when the client is gone."""
        if not self._open or self._websocket.client_state is not WebSocketState.CONNECTED:
            return False
        try:
            await self._websocket.send_bytes(_encode(reply))
        except (WebSocketDisconnect, RuntimeError):
            return False
        return True

    async def _discard(self, ok: msgspec.Raw) -> None:
        """Close sessions that were made for a client who has gone: nobody knows their ids."""
        made = _decode_any(ok)
        for session in made if isinstance(made, list) else [made]:
            try:
                await self._relay.call(self._tenant, Op.CLOSE, session["session_id"], _NO_BODY)
            except ServiceError as error:
                log.info("session.not_closed", reason=error.detail)


def _failed(frame_id: int, error: ServiceError) -> RawReply:
    return RawReply(frame_id, problem=_raw(error.problem().model_dump(mode="json", exclude_none=True)))


def _raw(body: object) -> msgspec.Raw:
    return msgspec.Raw(_encode(body))
