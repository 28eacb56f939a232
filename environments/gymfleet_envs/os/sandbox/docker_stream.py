"""A program's standard streams over a connection to the Docker daemon."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from gymfleet_envs.os.sandbox.base import HEAD_BYTES, Head

_HEADER_BYTES: Final = 8  # Docker's frames: stream, three zeros, length
_CHUNK: Final = 1 << 16
_SEND_TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 0.2
_SILENCE_S: Final = 0.1
_DRAIN_S: Final = 1.0


class Stream:
    """Reads frames, writes words.

    Args:
        connection: the object that Docker's package returns for a hijacked connection,
            or a socket.
        running: returns whether the program still runs. Processes that it left in the
            background may hold the stream open after its end.
    """

    def __init__(self, connection: Any, running: Callable[[], bool]) -> None:
        self._connection = connection
        self._running = running
        self._socket: socket.socket = getattr(connection, "_sock", connection)
        self._header = b""
        self._left = 0
        self._look_at = 0.0
        self._drained_at: float | None = None

    def send(self, data: bytes) -> None:
        """Write to standard input. Raises OSError."""
        self._socket.settimeout(_SEND_TIMEOUT_S)
        self._socket.sendall(data)
        self._look_at = time.monotonic() + _LOOK_S

    def read(self, head: Head, until: float) -> bytes | None:
        """Read the next chunk; empty if nothing came in time, None if the program or its stream has ended."""
        while (now := time.monotonic()) < until:
            if self._drained_at is None and now >= self._look_at:
                self._look_at = now + _LOOK_S
                self._drained_at = None if self._running() else now + _DRAIN_S
            if self._drained_at is not None and now >= self._drained_at:
                return None
            self._socket.settimeout(max(min(until - now, _SILENCE_S), 0.001))
            try:
                chunk = self._receive()
            except TimeoutError:
                if self._drained_at is not None:
                    return None
                continue
            except OSError:
                return None
            if chunk != b"":
                if chunk is not None:
                    head.add(chunk)
                    time.sleep(0.001 if head.cut else 0)  # a flood whose rest is dropped leaves others some time
                return chunk
        return b""

    def says(self, answer: bytes, head: Head, until: float) -> bool:
        """Whether `answer` comes in a separate frame; if not, `head` holds all output until the end."""
        while time.monotonic() < until:
            if (chunk := self.read(head, until)) is None:
                return False
            if chunk == answer:
                return True
        return False

    def until_marked(self, token: str, head: Head, until: float) -> int | None:
        """Read up to the shell's `TOKEN:CODE` line, which is not output; None if it does not come in time."""
        mark, tail = token.encode() + b":", b""
        while time.monotonic() < until:
            chunk = self.read(head, until)
            if chunk is None:
                return None
            tail = (tail + chunk)[-(_CHUNK + 128) :]
            _, found, after = tail.rpartition(mark)
            if found and b"\n" in after:
                if (place := head.data.find(mark)) >= 0:
                    del head.data[place:]
                elif head.cut:  # the mark's beginning may have been kept
                    del head.data[HEAD_BYTES:]
                number = after.partition(b"\n")[0]
                return int(number) if number.isdigit() and len(number) < 10 else None
        return None

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._connection.close()
            self._socket.close()

    def _receive(self) -> bytes | None:
        """Receive a part of the current frame; empty for a part of a header, None at the end. Raises TimeoutError."""
        if self._left == 0:
            chunk = self._socket.recv(_HEADER_BYTES - len(self._header))
            self._header += chunk
            if len(self._header) == _HEADER_BYTES:
                self._left = int.from_bytes(self._header[4:], "big")
                self._header = b""
            return b"" if chunk else None
        chunk = self._socket.recv(min(self._left, _CHUNK))
        self._left -= len(chunk)
        return chunk or None
