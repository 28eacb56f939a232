"""uvicorn's HTTP/1.1 with limits on unfinished requests: an incomplete head or body, or a silent connection.

Otherwise a caller that sends half a request on each of its connections would hold them for ever, and an endless head
would fill the memory. A request that arrives whole, as from every ordinary client, starts no timer here.
"""

from asyncio import BaseTransport, TimerHandle
from enum import Enum, auto
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT_S: Final = 10.0
"""Time from the first byte of a request, or from the connection, to the end of its headers."""
MAX_HEAD_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 128
MAX_URL_BYTES: Final = 16 * 1024
BODY_GRACE_S: Final = 15.0
MIN_BODY_BYTES_PER_S: Final = 1024
"""The least rate at which a body must have arrived if it is incomplete after `BODY_GRACE_S`."""

_TIMEOUT: Final = b"408 Request Timeout"
_HEAD_TOO_LARGE: Final = b"431 Request Header Fields Too Large"
_URL_TOO_LONG: Final = b"414 URI Too Long"


class _Part(Enum):
    """The unfinished part of a request on a connection."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()
    WEBSOCKET = auto()


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._part = _Part.NOTHING
        self._timer: TimerHandle | None = None
        self._timed: _Part | None = None
        self._num_bytes = 0
        """Bytes of the part so far; bytes of a body from before the timer do not count."""
        self._body_since = 0.0
        self._refusal = b""

    def connection_made(self, transport: BaseTransport) -> None:
        """Start to wait for the first request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._watch(_Part.HEAD)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting for anything."""
        self._watch(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, and watch the part that is still unfinished."""
        before = self._part
        super().data_received(data)
        if self._part is _Part.WEBSOCKET or self.transport.is_closing():
            self._watch(None)
        elif self._part is _Part.HEAD:
            self._num_bytes = self._num_bytes + len(data) if before is _Part.HEAD else len(data)
            if before is not _Part.BODY and self._num_bytes > MAX_HEAD_BYTES:
                self._refuse(_HEAD_TOO_LARGE)
            else:
                self._watch(_Part.HEAD)
        elif self._part is _Part.BODY:
            self._num_bytes += len(data)
            self._watch(_Part.BODY)
        elif self.cycle is not None and not self.cycle.response_complete:
            self._watch(None)
        elif self.timeout_keep_alive_task is None:
            self._watch(_Part.HEAD)  # empty lines between requests have stopped uvicorn's timer

    def handle_websocket_upgrade(self) -> None:
        """Pass the connection to another protocol."""
        self._part = _Part.WEBSOCKET
        self._watch(None)
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        self._part = _Part.HEAD
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that the head is complete; a head that is too large ends the parsing with an error."""
        if len(self.headers) > MAX_HEADERS:
            self._refusal = _HEAD_TOO_LARGE
        elif len(self.url) > MAX_URL_BYTES:
            self._refusal = _URL_TOO_LONG
        if self._refusal:
            raise ValueError(self._refusal.decode())
        self._part = _Part.BODY
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request is complete."""
        self._part = _Part.NOTHING
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that could not be parsed."""
        if self._refusal:
            self._refuse(self._refusal)
        else:
            super().send_400_response(msg)

    def _watch(self, part: _Part | None) -> None:
        """Start the one timer of a part, unless it already runs."""
        if part is self._timed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timed = part
        if part is _Part.HEAD:
            self._timer = self.loop.call_later(HEAD_TIMEOUT_S / 2, self._head_half_late)
        elif part is _Part.BODY:
            self._num_bytes, self._body_since = 0, self.loop.time()
            self._timer = self.loop.call_later(BODY_GRACE_S, self._look_at_body)

    def _head_half_late(self) -> None:
        # Use two steps, so that a loop that was held up reads the data that has arrived before it judges.
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S / 2, self._head_late)

    def _head_late(self) -> None:
        # Browsers open connections in advance, and would take any answer for that to their next request.
        if self._part is _Part.HEAD:
            self._refuse(_TIMEOUT)
        else:
            self.transport.close()

    def _look_at_body(self) -> None:
        waited_s = self.loop.time() - self._body_since
        if self.flow.read_paused or self._num_bytes >= MIN_BODY_BYTES_PER_S * waited_s:
            self._timer = self.loop.call_later(BODY_GRACE_S, self._look_at_body)
        elif self.cycle.response_started:
            self.transport.close()
        else:
            self._refuse(_TIMEOUT)

    def _refuse(self, status: bytes) -> None:
        """Answer with only a status, and close the connection."""
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            self.transport.close()
