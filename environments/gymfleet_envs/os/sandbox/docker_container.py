"""A sandbox isolated by Docker: one container per session, without network, bounded, removed with the server.

The checks of a session run in a second container, which the agent never controlled.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from docker.errors import APIError

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import HEAD_BYTES, SHELL_PATH, Head, Ran, SandboxError
from gymfleet_envs.os.sandbox.docker_changes import TooMuch
from gymfleet_envs.os.sandbox.docker_check import Sealed, put_view
from gymfleet_envs.os.sandbox.docker_layer import ContainerLayer
from gymfleet_envs.os.sandbox.docker_room import BEGIN, START_TIMEOUT_S, BrokenInside, Room, connect, docker_errors
from gymfleet_envs.os.sandbox.docker_stream import Stream
from gymfleet_envs.os.sandbox.rule import MAX_HIDDEN
from gymfleet_envs.os.sandbox.supervisor import SHELL

_SHELL: Final = f"{BEGIN}exec 9<&0 8>&1 2>&1 </dev/null\n{SHELL}"
_VIEW_S: Final = 8.0
"""Time allowed to make a root for checks; any excess is deducted from the time of the first check."""
_FREEZE_TRIES: Final = 3
_MIB: Final = 1 << 20
_OVERFULL: Final = b"No space left on device: the sandbox was stopped\n"


class DockerContainer:
    """One sandbox. Calls come from one thread at a time; each sandbox has its own connections."""

    def __init__(self, options: OsOptions) -> None:
        self._options = options
        self._disk_bytes = options.disk_mib * _MIB
        self._shell: Stream | None = None
        self._sealed: Sealed | None = None
        self._checks: Room | None = None
        self._no_checks: SandboxError | None = None
        self._unseen: tuple[str, ...] = ()
        self._client = connect()
        self._room = Room(self._client, options, self._disk_bytes)
        try:
            with docker_errors(options.image):
                self._room.start()
        except BaseException:
            self.close()
            raise
        self._layer = ContainerLayer(self._client.api, self.container_id)

    @property
    def container_id(self) -> str:
        """The id of the agent's container."""
        return self._room.container_id

    def shell(self, command: str, timeout_s: float) -> Ran:
        """Run in the session's shell. Raises `SandboxError`."""
        return self._guarded(lambda: self._run_in_shell(command, timeout_s))

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run a program outside the session's shell. Raises `SandboxError`."""
        return self._guarded(lambda: self._room.program(argv, timeout_s))

    def seal(self) -> None:
        """Take all current differences from the image as the task's. Raises `SandboxError`."""
        with docker_errors(self._options.image):
            self._sealed = Sealed(self._client.api, self._open_id(), self._disk_bytes)

    def check(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run in a separate container that contains the agent's files. Raises `SandboxError`."""
        until = time.monotonic() + timeout_s + _VIEW_S

        def run() -> Ran:
            room = self._check_room(until)
            return room.program(argv, min(timeout_s, until - time.monotonic()))

        try:
            return self._guarded(run)
        except TooMuch:
            return Ran(_OVERFULL, 1)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Paths where checks do not see the agent's changes."""
        return self._unseen

    def digest(self) -> str:
        """A digest of the differences from the image, constant from the first check on. Raises `SandboxError`."""
        with docker_errors(self._options.image):
            self._open_id()
            return self._layer.digest()

    def close(self) -> None:
        """Remove the containers. May be called again."""
        if self._shell is not None:
            self._shell.close()
        self._shell = None
        for room in (self._checks, self._room):  # in this order: the agent's processes never run beside a check
            if room is not None:
                room.close()
        if self._sealed is not None:
            self._sealed.close()
        self._client.close()

    def __del__(self) -> None:
        """Close the sandbox if nobody did, so that nothing stays."""
        if hasattr(self, "_room"):
            self.close()

    def _open_id(self) -> str:
        if not self.container_id:
            raise SandboxError("the sandbox is closed")
        return self.container_id

    def _check_room(self, until: float) -> Room:
        """The container for checks, made for the first one. The agent's processes are frozen for good."""
        if self._no_checks is not None:
            raise self._no_checks
        if self._checks is None:
            room = Room(self._client, self._options, 2 * self._disk_bytes, beside=self._open_id())
            try:
                with docker_errors(self._options.image):
                    self._furnish(room, until)
                self._checks = room
            except SandboxError as error:  # what is half furnished shows nobody's work
                self._no_checks = error
                raise
            finally:
                if self._checks is None:
                    room.close()
        return self._checks

    def _furnish(self, room: Room, until: float) -> None:
        api, agent = self._client.api, self._open_id()
        self._sealed = self._sealed or Sealed(api, agent, self._disk_bytes)
        self._freeze(agent)
        room.start()
        unseen = put_view(api, agent, self._sealed, room, disk_bytes=self._disk_bytes, until=until)
        self._unseen = tuple(unseen[:MAX_HIDDEN])

    def _freeze(self, agent: str) -> None:
        for left in reversed(range(_FREEZE_TRIES)):
            try:
                self._client.api.pause(agent)
            except APIError:  # under load the kernel may not have stopped all in the time that runc gives it
                if not left:
                    raise
            else:
                return

    def _run_in_shell(self, command: str, timeout_s: float) -> Ran:
        room = self._room
        if self._shell is None:
            _, self._shell = room.execute(["bash", "-c", _SHELL, "bash"], SHELL_PATH)
            if self._shell.until_marked("0", Head(HEAD_BYTES), time.monotonic() + START_TIMEOUT_S) is None:
                room.tell(b"p")
                raise SandboxError("the shell did not start")
        token, until = secrets.token_hex(16), time.monotonic() + timeout_s
        head = Head(HEAD_BYTES + 64)
        words = (token, command.replace("\0", ""))
        with contextlib.suppress(OSError):  # the shell ended meanwhile: so does its output
            self._shell.send(b"".join(word.encode(errors="replace") + b"\0" for word in words))
        code = self._shell.until_marked(token, head, until)
        timed_out = code is None and time.monotonic() >= until
        if code is None:  # stopped, or gone: the next command gets a new shell
            self._shell.close()
            self._shell = None
            room.tell(b"k" if timed_out else b"p")
        return Ran(bytes(head.data[:HEAD_BYTES]), code, head.cut, timed_out, code is None)

    def _guarded(self, run: Callable[[], Ran]) -> Ran:
        try:
            with docker_errors(self._options.image):
                return run()
        except BrokenInside as error:
            return Ran(f"{error}\n".encode(), 127)
        except SandboxError:
            if not self._room.overfull and not (self._checks is not None and self._checks.overfull):
                raise
        return Ran(_OVERFULL, 1)
