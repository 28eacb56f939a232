"""`WS /v1/stream`: many sessions on one socket, forwarded frame by frame."""

import asyncio
from typing import Final

import structlog
from fastapi import APIRouter, WebSocket
from gymfleet_contracts.frames import RawRequest
from gymfleet_kit.problem_handlers import problem_response
from gymfleet_kit.problems import RelayedProblem, ServiceError, internal_problem
from gymfleet_kit.session_api.calls import Done
from gymfleet_kit.session_api.stream import SessionSocket
from gymfleet_kit.trace import enter_trace

from gymfleet_env_gateway.access import Tenant
from gymfleet_env_gateway.errors import Forbidden, Unauthorized, Unavailable
from gymfleet_env_gateway.session_proxy import TenantCalls
from gymfleet_env_gateway.state import Gateway, get_gateway

MAX_OUTBOX_BYTES: Final = 256 * 1024 * 1024
"""Answers that one client may leave unread before it is cut off."""
router = APIRouter()
log = structlog.get_logger()


@router.websocket("/v1/stream")
async def stream(websocket: WebSocket) -> None:
    """Answer each request frame when its answer is there, in any order; see `gymfleet_contracts.frames`."""
    gateway = get_gateway(websocket)
    try:
        tenant = await gateway.access.admit(websocket)
        if gateway.streams.finishing:
            raise Unavailable("this gateway is on its way out")
    except ServiceError as error:
        await websocket.send_denial_response(problem_response(error.problem(), error.headers()))
        return
    await websocket.accept()
    caller = _Caller(websocket, gateway, tenant)
    socket = SessionSocket(
        websocket,
        caller.submit,
        max_calls=gateway.settings.max_calls_per_socket,
        max_outbox_bytes=MAX_OUTBOX_BYTES,
        is_welcome=caller.is_welcome,
    )
    gateway.streams.add(socket)
    try:
        await socket.serve()
    finally:
        gateway.streams.discard(socket)


class _Caller:
    """Whoever is at the other end of a socket: a tenant whose key may be withdrawn."""

    def __init__(self, websocket: WebSocket, gateway: Gateway, tenant: Tenant) -> None:
        self._websocket = websocket
        self._access = gateway.access
        self._generation = gateway.access.generation
        self._calls = TenantCalls(gateway.proxy, tenant)
        self._tasks: set[asyncio.Task[None]] = set()

    def is_welcome(self) -> bool:
        """Check the key again after the tenants have changed: it may be gone, or its tenant's limits may be new."""
        if self._generation != self._access.generation:
            self._generation = self._access.generation
            try:
                self._calls = TenantCalls(self._calls.proxy, self._access.tenant(self._websocket))
            except (Unauthorized, Forbidden):
                return False
        return True

    def submit(self, request: RawRequest, done: Done) -> None:
        """Start a call in a task of its own, which continues if the client leaves."""
        task = asyncio.create_task(self._answer(request, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: RawRequest, done: Done) -> None:
        if request.trace:
            enter_trace(request.trace)
        try:
            result = await self._calls.call(request.op, request.session_id, request.body)
        except ServiceError as error:
            done(error)
        except Exception:
            log.exception("frame.failed", op=request.op)
            done(RelayedProblem(internal_problem()))
        else:
            done(result)
