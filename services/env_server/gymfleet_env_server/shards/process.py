"""The front's hold on one shard: its process, its channel and its progress."""

import asyncio
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
import structlog
from gymfleet_contracts.session import EnvironmentSpec

from gymfleet_env_server.catalogue import EnvironmentUnavailable
from gymfleet_env_server.shards.channel import (
    Call,
    FrameBuffer,
    Report,
    ShardConfig,
    decode_hello,
    decode_report,
    pack,
)
from gymfleet_env_server.shards.progress import PROGRESS
from gymfleet_env_server.shards.shard import CLOSE_S

_GRACE_S: Final = CLOSE_S + 2.0
_POLL_S: Final = 0.005
_LOOK_S: Final = 1.0
_RECV_BYTES: Final = 1 << 18
log = structlog.get_logger()


class Progress(NamedTuple):
    """The unpacked fields of `progress.PROGRESS`."""

    number: int
    """Number of the current call; 0 between calls."""
    beats: int
    """Number of calls into environments so far."""
    place: int
    """Position of the environment that was called last."""
    busy_us: int
    """Time spent on calls so far."""
    since_us: int = 0
    """When the oldest call running in a thread began, which is the one that `number` and `place` describe; by the clock
    of `time.monotonic`, which processes share."""
    limit_us: int = 0
    """The call's own time limit; 0 where it has none."""

    def limit_s(self, usual_s: float) -> float:
        """Return the call's time limit."""
        return 1e-6 * self.limit_us or usual_s


class ShardProcess:
    """A worker process. It is started and made ready without an event loop, then attached to one.

    It must be created in a thread that lives as long as the process: Linux ties the
    child's life to the thread that started it.
    """

    def __init__(self, config: ShardConfig) -> None:
        ours, theirs = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe()
        with tempfile.TemporaryFile() as shared:
            shared.truncate(PROGRESS.size)
            self._progress = mmap.mmap(shared.fileno(), PROGRESS.size)
            fds = (theirs.fileno(), lifeline_read, shared.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gymfleet_env_server.shards.shard", *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=2,  # what an engine prints belongs in the log
                start_new_session=True,  # Ctrl-C must reach only the front, and a kill also an engine's children
            )
        theirs.close()
        os.close(lifeline_read)
        self._socket = ours
        self._socket.sendall(pack(config))
        self._buffer = FrameBuffer()
        self._transport: asyncio.Transport | None = None
        self.pid = self._process.pid

    def wait_ready(self, timeout_s: float) -> list[EnvironmentSpec]:
        """Block until the shard has loaded its environments. Raises `EnvironmentUnavailable`."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = deadline - time.monotonic()
            self._socket.settimeout(max(min(left_s, _LOOK_S), 0.001))
            try:
                data = self._socket.recv(_RECV_BYTES)
            except TimeoutError:
                if left_s > _LOOK_S:  # look whether the socket was closed: the end of the server waits for this thread
                    continue
                raise EnvironmentUnavailable(f"the environments did not load within {timeout_s:g} s") from None
            except ConnectionResetError:
                data = b""
            if not data:
                code = self._reap(_GRACE_S)
                raise EnvironmentUnavailable(f"a shard ended with exit code {code} while it loaded; see its log")
            if messages := self._buffer.feed(data):
                hello = decode_hello(messages[0])
                if hello.error:
                    raise EnvironmentUnavailable(hello.error)
                return [EnvironmentSpec.model_validate(spec) for spec in hello.specs]

    async def attach(self, on_report: Callable[[Report], None], on_death: Callable[[], None]) -> None:
        """Attach to the running loop: reports and the end of the process arrive as calls of the two callbacks."""
        self._socket.setblocking(False)
        loop = asyncio.get_running_loop()
        protocol = _Protocol(self._buffer, on_report, on_death)
        self._transport, _ = await loop.create_unix_connection(lambda: protocol, sock=self._socket)

    def send(self, calls: list[Call]) -> None:
        """Send a batch. A dead shard accepts it too: its death fails the pending calls."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(pack(calls))

    def progress(self) -> Progress:
        """Return the shard's current progress."""
        return Progress(*PROGRESS.unpack_from(self._progress, 0))

    def kill(self) -> None:
        """Send SIGKILL to the shard and all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def release(self) -> int:
        """Close the channel, wait for the end, kill what is left, the shard or its children; return the exit code.

        Blocks for at most a few seconds. It must not be called twice.
        """
        if self._transport is None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for the shard to be ready
            self._socket.close()
            self.kill()  # it has no sessions to be closed
        try:
            return self._reap(_GRACE_S)
        finally:
            with contextlib.suppress(OSError):
                os.close(self._lifeline)  # only now: closing it kills the shard
            self._progress.close()

    def _reap(self, grace_s: float) -> int:
        """Return the exit code, after killing all that the shard started while its process id is still its own."""
        ends_at = time.monotonic() + grace_s
        if self._process.returncode is None:
            while time.monotonic() < ends_at and not _has_ended(self.pid):
                time.sleep(_POLL_S)
            self.kill()
        return self._process.wait()

    def detach(self) -> None:
        """Close the channel on the loop's side."""
        if self._transport is not None:
            self._transport.abort()


def _has_ended(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # another thread has waited for it
        return True


class _Protocol(asyncio.Protocol):
    def __init__(self, buffer: FrameBuffer, on_report: Callable[[Report], None], on_death: Callable[[], None]) -> None:
        self._buffer = buffer
        self._on_report = on_report
        self._on_death = on_death
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            reports = [decode_report(message) for message in self._buffer.feed(data)]
        except (ValueError, msgspec.DecodeError) as error:  # an environment wrote to our channel, or worse
            log.error("shard.unreadable", reason=str(error))
            if isinstance(self._transport, asyncio.Transport):
                self._transport.abort()
            return
        for report in reports:
            self._on_report(report)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._on_death()
