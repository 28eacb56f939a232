"""The server's side of `launcher` and `steward`."""

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from gymfleet_envs.os.sandbox.base import SandboxError

_ANSWER_TIMEOUT_S: Final = 8.0
_MAX_ANSWER: Final = 1 << 16


class _Launcher:
    """The launcher of this process, started on first use and again if it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = 0

    def connect(self) -> socket.socket:
        """Return a socket to a new steward. Raises `SandboxError`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_TIMEOUT_S)
        with theirs, self._lock:
            try:
                socket.send_fds(self._running(), [b"steward"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SandboxError(f"no process can be started for sandboxes: {error.strerror}") from None
        return ours

    def stop(self) -> None:
        """End the launcher, and with it all stewards."""
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._process is not None and self._owner == os.getpid():
                self._process.wait()
            self._control = self._process = None

    def _running(self) -> socket.socket:
        alive = self._process is not None and self._owner == os.getpid() and self._process.poll() is None
        if self._control is None or not alive:
            if self._control is not None:
                self._control.close()
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-m", "gymfleet_envs.os.sandbox.launcher", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd="/",
                    env={},
                    start_new_session=True,
                )
            self._control, self._owner = ours, os.getpid()
        return self._control


_LAUNCHER: Final = _Launcher()
atexit.register(_LAUNCHER.stop)


class StewardClient:
    """Client of one session's steward. Calls come from one thread at a time."""

    def __init__(self) -> None:
        self._socket = _LAUNCHER.connect()

    def ask(self, op: str, handles: Sequence[int] = (), **fields: Any) -> dict[str, Any]:
        """Send a request and return the steward's answer. Raises `SandboxError`."""
        try:
            socket.send_fds(self._socket, [json.dumps({"op": op, **fields}).encode()], handles)
            data = self._socket.recv(_MAX_ANSWER)
        except OSError as error:
            raise SandboxError(f"the sandbox does not answer: {error}") from None
        if not data:
            raise SandboxError("the sandbox ended")
        answer: dict[str, Any] = json.loads(data)
        if "error" in answer:
            raise SandboxError(f"the sandbox cannot {op}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Disconnect, and wait until the steward is gone with all processes that it started."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(_MAX_ANSWER):
                pass
        except OSError:
            pass
        self._socket.close()
