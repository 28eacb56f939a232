"""OpenEnv's sockets: `/ws`, one episode at a time, and `/mcp`, which does the same by JSON-RPC.

Answers come in the order of the requests, since the frames have no ids. A socket
that ends with a close frame closes its session; a socket that is lost leaves the session
to its lease, so that the client can continue with `/ws?session_id=ID`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import structlog
from fastapi import WebSocket, WebSocketDisconnect
from fastapi.websockets import WebSocketState
from gymfleet_contracts.frames import MAX_UNREADABLE, NO_REQUESTS
from gymfleet_kit.problems import ServiceError
from starlette.types import Message

from gymfleet_env_gateway.fronts.openenv.connection import HANDLE_PREFIX, Client, OpenEnvConnection, SharedConnection
from gymfleet_env_gateway.fronts.openenv.mcp import Rpc, mcp_action, rpc_failure
from gymfleet_env_gateway.fronts.openenv.wire import (
    BareFrame,
    ErrorCode,
    FrameError,
    ResetFrame,
    RpcFrame,
    TextAction,
    read_frame,
    read_json,
    read_model,
    write_frame,
)

log = structlog.get_logger()
T = TypeVar("T")

_POLICY_VIOLATION: Final = 1008
_NORMAL: Final = 1000
_GOING_AWAY: Final = 1001
_NO_CODE: Final = 1005

Connections = WeakValueDictionary[str, OpenEnvConnection]
"""The connections of this process's sockets, by session: a socket that resumes a session takes it from the other."""


class Socket:
    """One client's connection."""

    def __init__(self, websocket: WebSocket, client: Client, connections: Connections) -> None:
        self._websocket = websocket
        self._client = client
        self._connections = connections
        self._access = client.gateway.access
        self._settings = client.gateway.settings
        self._generation = self._access.generation
        self._connection = OpenEnvConnection(client, lease_s=self._settings.openenv_lease_s)
        self._name = ""
        """The session by which the connection is known to other sockets."""
        self._unreadable = 0

    async def serve(self, session_id: str | None) -> None:
        """Serve `/ws` until the client leaves."""
        await self._websocket.accept()
        if session_id:
            try:
                await self._attach(session_id)
            except FrameError as error:
                if error.code is not ErrorCode.CAPACITY_REACHED:
                    error.code = ErrorCode.SESSION_ERROR
                await self._send(error.frame())
                await self._hang_up()
                return
        await self._loop(self._answer)

    async def serve_rpc(self) -> None:
        """Serve `/mcp` until the client leaves."""
        await self._websocket.accept()
        rpc = self._rpc()

        async def answer(text: str | None) -> dict[str, Any]:
            try:
                return await rpc.answer(self._read(read_json, text))
            except FrameError as error:
                return rpc_failure(error)

        await self._loop(answer)

    async def _loop(self, answer: Callable[[str | None], Awaitable[dict[str, Any] | None]]) -> None:
        finished = False
        try:
            while not finished:
                message = await self._receive()
                if message["type"] == "websocket.disconnect":
                    finished = _said_goodbye(message)
                    break
                if not self._still_allowed():
                    await self._hang_up(_POLICY_VIOLATION)
                    break
                reply = await answer(message.get("text"))
                self._note_name()
                finished = reply is None
                if reply is not None:
                    await self._send(reply)
                if self._unreadable > MAX_UNREADABLE:
                    await self._hang_up(*NO_REQUESTS)
                    break
        finally:
            if finished and not self._connection.shared:
                await self._connection.leave()
        await self._hang_up()

    def _read(self, read: Callable[[str | None], T], text: str | None) -> T:
        """Parse a frame, counting consecutive unreadable ones. Raises `FrameError`."""
        self._unreadable += 1
        value = read(text)
        self._unreadable = 0
        return value

    async def _receive(self) -> Message:
        """Return the next message. While the client thinks, its session's lease is renewed, but not forever."""
        began = asyncio.get_running_loop().time()
        while True:
            idle_s = asyncio.get_running_loop().time() - began
            renews = self._connection.lives_by_socket and idle_s < self._settings.openenv_idle_s
            try:
                # Not `wait_for`: it would create a task for each of possibly many waiting sockets.
                async with asyncio.timeout(self._connection.lease_s / 2 if renews else None):
                    return await self._websocket.receive()
            except TimeoutError:
                await self._connection.renew()

    async def _answer(self, text: str | None) -> dict[str, Any] | None:
        """Return the reply to a frame, or None when the client says that it is done."""
        try:
            frame = self._read(read_frame, text)
            if isinstance(frame, BareFrame):
                return None if frame.type == "close" else {"type": "state", "data": await self._connection.state()}
            if isinstance(frame, RpcFrame):
                return {"type": "mcp", "data": await self._rpc().answer(frame.data)}
            if isinstance(frame, ResetFrame):
                return {"type": "observation", "data": await self._connection.reset(frame.data)}
            data = await mcp_action(self._connection, frame.data)
            if data is None:
                data = await self._connection.step(read_model(TextAction, frame.data).message)
        except FrameError as error:
            return error.frame()
        except Exception:
            log.exception("frame.failed", env=self._client.spec.name)
            return FrameError(ErrorCode.EXECUTION_ERROR, "internal error; see the gateway's log").frame()
        return {"type": "observation", "data": data}

    async def _attach(self, session_id: str) -> None:
        if session_id.startswith(HANDLE_PREFIX):
            connection = SharedConnection(self._client, session_id)
            await connection.check()
            self._connection = connection
            return
        other, client = self._connections.get(session_id), self._client
        if other is not None and (other.tenant.name, other.spec.name) == (client.tenant.name, client.spec.name):
            await other.give_up(session_id)
        await self._connection.resume(session_id)
        self._note_name()

    def _note_name(self) -> None:
        """Make the connection known by its present session alone: it may play very many."""
        if (name := self._connection.name) == self._name:
            return
        if self._connections.get(self._name) is self._connection:
            del self._connections[self._name]
        self._name = name
        if name:
            self._connections[name] = self._connection

    def _rpc(self) -> Rpc:
        return Rpc(self._client, self._connection)

    def _still_allowed(self) -> bool:
        """Return whether the key is still valid: withdrawing a key ends the connections that it opened."""
        generation = self._access.generation
        if generation != self._generation:
            self._generation = generation
            try:
                return self._access.tenant(self._websocket).name == self._client.tenant.name
            except ServiceError:
                return False
        return True

    async def _send(self, reply: dict[str, Any]) -> None:
        """Send a reply, ignoring a client that is gone: the next `receive` tells how it left."""
        try:
            await self._websocket.send_text(write_frame(reply))
        except (WebSocketDisconnect, RuntimeError):
            return

    async def _hang_up(self, code: int = _NORMAL, reason: str = "") -> None:
        if self._websocket.client_state is WebSocketState.CONNECTED:
            try:
                await self._websocket.close(code, reason)
            except (WebSocketDisconnect, RuntimeError):
                return


def _said_goodbye(message: Message) -> bool:
    """Return whether a close frame came. Without one uvicorn also reports 1005, but then gives no reason."""
    code = message.get("code")
    return code in {_NORMAL, _GOING_AWAY} or (code == _NO_CODE and "reason" in message)
