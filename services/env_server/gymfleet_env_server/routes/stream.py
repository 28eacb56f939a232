"""`WS /v1/stream`: many sessions on one socket, answered as the shards answer."""

from typing import Final

from fastapi import APIRouter, WebSocket
from gymfleet_contracts.frames import RawRequest
from gymfleet_kit.session_api.calls import Done
from gymfleet_kit.session_api.stream import SessionSocket

from gymfleet_env_server.shards.pool import ShardPool

MAX_IN_FLIGHT: Final = 16_384
"""Calls in progress of one socket: a gateway brings those of all its clients."""
router = APIRouter()


@router.websocket("/v1/stream")
async def stream(socket: WebSocket) -> None:
    """Frames in, frames out; see `gymfleet_contracts.frames`."""
    pool: ShardPool = socket.app.state.pool

    def submit(request: RawRequest, done: Done) -> None:
        pool.submit(request.op, request.session_id, request.body, done, request.trace, request.replies)

    await socket.accept()
    await SessionSocket(socket, submit, max_calls=MAX_IN_FLIGHT, max_outbox_bytes=pool.max_outbox_bytes).serve()
