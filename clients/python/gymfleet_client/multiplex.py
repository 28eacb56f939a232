"""The socket of `WS /v1/stream`: many calls at once, matched by id, answered out of order.

Bodies stay encoded here (`msgspec.Raw`), so that the gateway can forward a frame
without decoding its body; `stream.SessionStream` adds models on top.
"""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeGuard
from urllib.parse import urlsplit, urlunsplit

import msgspec
import websockets
from gymfleet_contracts import problems
from gymfleet_contracts.frames import FINISHED, MAX_FRAME_BYTES, RawReply, RawRequest, join_frames, split_frames
from gymfleet_contracts.problems import Problem
from websockets.asyncio.client import ClientConnection, connect
from websockets.http11 import Response

from gymfleet_client._connected import Connected
from gymfleet_client._retries import GrowingPause, repeated
from gymfleet_client.errors import ClientError, DeadlinePassed, TransportError, parse_problem, problem_error

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0
_SWEEP_S: Final = 0.05
"""The longest delay before a call notices that its time is up."""
_SERVER_ERROR: Final = 500
_KEY_REFUSED: Final = (401, 403)
_NOT_THERE: Final = (OSError, websockets.InvalidHandshake, TimeoutError)
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding foreign msgpack raises."""
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_reply: Final = msgspec.msgpack.Decoder(RawReply).decode


class _ConnectionLost(TransportError):
    """The socket closed before the answer came; `sent` is False if the call was certainly not executed."""

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.sent = sent


class _Socket:
    """One live connection and the calls that wait on it."""

    def __init__(self, connection: ClientConnection, on_loss: Callable[[], None]) -> None:
        self._connection = connection
        self._on_loss = on_loss
        self._pending: dict[int, tuple[asyncio.Future[RawReply], float]] = {}
        self._if_late: dict[int, Callable[[RawReply], None]] = {}
        """What takes the replies to calls that may give up, by id."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self.lost: str | None = None
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    async def call(
        self, frame_id: int, data: bytes, deadline: float, if_late: Callable[[RawReply], None] | None
    ) -> RawReply:
        """Send an encoded request and wait for its reply. Raises `TimeoutError` soon after `deadline`.

        `if_late` takes the reply if it comes when nobody waits for it any more.
        """
        if self.lost is not None:
            raise _ConnectionLost(self.lost, sent=False)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RawReply] = loop.create_future()
        self._pending[frame_id] = answer, deadline
        if if_late is not None:
            self._if_late[frame_id] = if_late
        if self._sweeping is None:  # one timer for all calls: a timer for each would cost as much as the call
            self._sweeping = loop.call_later(_SWEEP_S, self._sweep)
        self._outbox.append(data)
        self._wake.set()
        try:
            reply = await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:  # it came a moment too late
                self._late(answer.result())
            raise
        finally:
            self._pending.pop(frame_id, None)
        self._if_late.pop(frame_id, None)
        return reply

    async def aclose(self) -> None:
        """Close the socket; waiting calls fail."""
        await self._connection.close()
        await self._reader

    def _late(self, reply: RawReply) -> None:
        """Give a reply to a call that gave up to whoever wants it; others are dropped."""
        if (if_late := self._if_late.pop(reply.id, None)) is not None:
            if_late(reply)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for answer, deadline in list(self._pending.values()):
            if deadline < now and not answer.done():
                answer.set_exception(TimeoutError())
        self._sweeping = loop.call_later(_SWEEP_S, self._sweep) if self._pending else None

    async def _write(self) -> None:
        """Send all calls of one turn of the event loop in one message."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox:
                    await self._connection.send(join_frames(self._outbox)[1])
        except websockets.ConnectionClosed:
            return  # the reader notices it as well and fails the waiting calls

    async def _read(self) -> None:
        reason, sent = "the connection was closed", True
        try:
            async for data in self._connection:
                for frame in split_frames(data if isinstance(data, bytes) else data.encode()):
                    reply = _decode_reply(frame)
                    pending = self._pending.get(reply.id)
                    if pending is not None and not pending[0].done():
                        pending[0].set_result(reply)
                    else:
                        self._late(reply)
        except websockets.ConnectionClosed as error:
            reason = f"the connection was lost: {error}"
            sent = error.rcvd is None or error.rcvd.code != FINISHED
        except UNREADABLE as error:
            reason = f"the server sent an unreadable frame: {error}"
            await self._connection.close(code=1003)
        finally:
            self.lost = reason
            self._writer.cancel()
            self._on_loss()
            for answer, _ in self._pending.values():
                if not answer.done():
                    answer.set_exception(_ConnectionLost(reason, sent=sent))


class _Link:
    """A holder of one socket, which is opened on demand and opened again after a loss."""

    def __init__(
        self, url: str, headers: Mapping[str, str], connect_timeout_s: float, on_loss: Callable[[], None]
    ) -> None:
        self._url = url
        self._headers = headers
        self._connect_timeout_s = connect_timeout_s
        self._on_loss = on_loss
        self._socket: _Socket | None = None
        self._connecting: asyncio.Task[_Socket] | None = None
        self._closed = False

    @property
    def live(self) -> _Socket | None:
        """The socket, if it is open."""
        return self._socket if self._socket is not None and self._socket.lost is None else None

    async def socket(self) -> _Socket:
        """Return the live socket, opened if necessary; all callers that wait for a connection share one attempt."""
        if (live := self.live) is not None:
            return live
        if self._closed:
            raise TransportError(f"the connection to {self._url} was closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._connected)
        connecting = self._connecting
        await asyncio.wait([connecting])
        if connecting.cancelled():  # `aclose` cancelled it; the caller itself was not cancelled
            raise TransportError(f"the connection to {self._url} was closed")
        return connecting.result()

    async def aclose(self) -> None:
        """Close the link permanently."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._socket is not None:
            await self._socket.aclose()

    def _connected(self, task: asyncio.Task[_Socket]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._socket = task.result()

    async def _connect(self) -> _Socket:
        """Connect, with repeated tries within `connect_timeout_s`: a service that restarts is soon back."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._connect_timeout_s
        growing = GrowingPause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

        def pause_s(error: Exception) -> float | None:
            if not isinstance(error, _NOT_THERE) or _refused(error):
                return None
            pause = growing.next_s()
            return pause if loop.time() + pause < deadline else None

        try:
            return await repeated(lambda: self._handshake(max(deadline - loop.time(), 0.001)), pause_s)
        except _NOT_THERE as error:
            if _refused(error):
                raise _refusal(self._url, error.response) from None
            raise TransportError(f"cannot connect to {self._url}: {error or 'no answer'}") from None

    async def _handshake(self, open_timeout_s: float) -> _Socket:
        connection = await connect(
            self._url,
            additional_headers=dict(self._headers),
            compression=None,  # frames are small: deflate would cost more than it saves
            proxy=None,
            open_timeout=open_timeout_s,
            close_timeout=2,
            max_size=MAX_FRAME_BYTES,
            max_queue=None,  # the reader only hands replies to their waiters; callers bound what is in flight
        )
        return _Socket(connection, self._on_loss)


def _refused(error: Exception) -> TypeGuard[websockets.InvalidStatus]:
    return isinstance(error, websockets.InvalidStatus) and error.response.status_code < _SERVER_ERROR


def _refusal(url: str, response: Response) -> ClientError:
    """Return the service's own problem for a wrong key, else an error with the status of the refusal."""
    if response.status_code in _KEY_REFUSED:
        with suppress(ValueError):
            return problem_error(parse_problem(json.loads(response.body or b""), response.status_code))
    return TransportError(f"{url} refused the connection with status {response.status_code}")


class FrameChannel(Connected):
    """One or a few sockets to a session API, shared by any number of concurrent calls.

    Args:
        base_url: `http(s)://host:port` of the service; `/v1/stream` is appended.
        api_key: sent as a bearer token when given.
        connect_timeout_s: how long a refused or lost connection is retried before calls fail.
        connections: the number of sockets, which calls use in rotation.
        on_loss: called whenever a live socket closes.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 10.0,
        connections: int = 1,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        if connections < 1:
            raise ValueError(f"connections must be at least 1, got {connections}")
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        url = stream_url(base_url)
        self._links = [_Link(url, headers, connect_timeout_s, on_loss) for _ in range(connections)]
        self._turn = itertools.cycle(self._links)
        self._ids = itertools.count(1)

    async def connect(self) -> None:
        """Open every socket now. Raises `TransportError`. Without this call, sockets open at the first request."""
        await asyncio.gather(*(link.socket() for link in self._links))

    async def aclose(self) -> None:
        """Close every socket; calls that still wait fail with `TransportError`."""
        await asyncio.gather(*(link.aclose() for link in self._links))

    async def request(
        self,
        op: str,
        session_id: str,
        body: msgspec.Raw | dict[str, Any] | None,
        *,
        timeout_s: float,
        repeatable: bool,
        trace: str = "",
        replies: bytes = b"",
        if_late: Callable[[RawReply], None] | None = None,
    ) -> tuple[RawReply, int]:
        """Make one call; return the reply and the number of times that the call may have reached the server.

        A call that was certainly never sent is sent again; one that may have arrived, only if it is `repeatable`.
        `replies` are the recorded replies of models that a gateway's replay repeats. `if_late` takes a reply that
        comes after the caller gave up.
        Raises `DeadlinePassed` after `timeout_s`, `TransportError` if the connection is lost for good, and
        `PayloadTooLarge` for a call that no server would read: it would close the socket instead.
        """
        raw = body if isinstance(body, msgspec.Raw) else msgspec.Raw(_encode(body or {}))
        times_sent = 0
        growing: GrowingPause | None = None
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while True:  # not `repeated`, which would add a microsecond to every call that the gateway forwards
                link = next(self._turn)
                if (socket := link.live) is None:
                    async with asyncio.timeout_at(deadline):
                        socket = await link.socket()
                frame_id = next(self._ids)
                data = _encode(RawRequest(frame_id, op, session_id, raw, trace, replies))
                if len(data) > MAX_FRAME_BYTES:
                    raise problem_error(_too_large(op, len(data)))
                try:
                    return await socket.call(frame_id, data, deadline, if_late), times_sent + 1
                except _ConnectionLost as error:
                    times_sent += error.sent
                    if error.sent and not repeatable:
                        raise
                growing = growing or GrowingPause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                async with asyncio.timeout_at(deadline):
                    await asyncio.sleep(growing.next_s())
        except TimeoutError:
            raise DeadlinePassed(f"no answer to {op} within {timeout_s:g} s") from None


def _too_large(op: str, size_bytes: int) -> Problem:
    detail = f"the call of {op} has {size_bytes} bytes; a frame has at most {MAX_FRAME_BYTES}"
    return Problem(type=problems.PAYLOAD_TOO_LARGE, title="The body is too large", status=413, detail=detail)


def stream_url(base_url: str) -> str:
    """Turn `http://host:port` into `ws://host:port/v1/stream`. Raises ValueError for anything else."""
    parts = urlsplit(base_url)
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ValueError(f"not a base URL: {base_url!r}; give it as http://host:port")
    return urlunsplit((schemes[parts.scheme], parts.netloc, parts.path.rstrip("/") + "/v1/stream", "", ""))
