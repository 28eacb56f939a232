"""The processes over one root: bubblewrap, a supervisor in it, and the programs that the supervisor runs on request."""

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import PROGRAM_HEAD_BYTES, PROGRAM_PATH, SHELL_PATH, Head, Ran, SandboxError
from gymfleet_envs.os.sandbox.channel import Channel, Pipe
from gymfleet_envs.os.sandbox.launching import StewardClient
from gymfleet_envs.os.sandbox.processes import ProcessTree
from gymfleet_envs.os.sandbox.seccomp import seccomp_filter
from gymfleet_envs.os.sandbox.supervisor import SHELL, SUPERVISOR, limits
from gymfleet_envs.os.sandbox.watch import WATCH

_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETUID", "SETGID", "SETPCAP")
_SPARE_PROCESSES: Final = 32  # so that the task's programs can start when the agent's have used theirs up
START_TIMEOUT_S: Final = 8.0
"""Time limit for the first answer from inside."""
_CLOSE_TIMEOUT_S: Final = 10.0
_MIB: Final = 1 << 20
_FIRST_NUMBER: Final = 100
"""The lowest descriptor inside. Descriptors inside are independent of the server's, which may have thousands, and
avoid those that bash takes for itself and the steward's."""


class Room:
    """Processes over a root. Calls come from one thread at a time."""

    def __init__(self, steward: StewardClient, options: OsOptions) -> None:
        self._steward = steward
        self._options = options
        self.requests, self.commands = Pipe.inwards(), Pipe.inwards()
        self.answers, self.results, self.output, self.errors = (Pipe.outwards() for _ in range(4))
        self.pid = 0
        """The process id of bubblewrap itself, outside what it isolates."""
        self.handle = -1
        self.tree: ProcessTree | None = None
        self.channel = Channel(self.requests.ours, self.answers.ours, self.errors.ours)

    def start(
        self,
        arguments: Sequence[str],
        handles: Mapping[str, int],
        environment: Mapping[str, str],
        beside: int | None = None,
    ) -> None:
        """Start bubblewrap with these arguments; call `watch` next. Raises `SandboxError`.

        Each descriptor in `handles` is open inside and passed to bubblewrap with the option that is its key.
        """
        pipes = (self.requests, self.answers, self.commands, self.results, self.output)
        seccomp = _reopened(_filter_fd())
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            told = {**handles, "--seccomp": seccomp}
            numbers = range(_FIRST_NUMBER, _FIRST_NUMBER + len(pipes) + len(told))
            argv = [_found("bwrap"), *arguments, *_inside(environment)]
            for option, number in zip(told, numbers[len(pipes) :], strict=True):
                argv += [option, str(number)]
            argv += ["--", *self._supervisor(numbers[: len(pipes)])]
            given = [*(pipe.theirs for pipe in pipes), *told.values(), nothing, nothing, self.errors.theirs]
            answer = self._steward.ask("start", given, argv=argv, numbers=[*numbers, 0, 1, 2], beside=beside)
        finally:
            os.close(seccomp)
            os.close(nothing)
        self.pid = int(answer["pid"])
        self.handle = os.pidfd_open(self.pid)
        for pipe in (*pipes, self.errors):
            if pipe is not self.commands:
                pipe.close_theirs()

    def watch(self, first: int) -> None:
        """Bound the descendants of this process."""
        self.tree = ProcessTree(first)
        WATCH.add(
            self.tree,
            memory_bytes=self._options.memory_mib * _MIB,
            processes=4 * (self._options.processes + _SPARE_PROCESSES),  # each user inside may have its share
        )

    def await_supervisor(self) -> None:
        """Wait for the supervisor, so that its start does not take a program's time. Raises `SandboxError`."""
        head = Head(PROGRAM_HEAD_BYTES)
        until = time.monotonic() + START_TIMEOUT_S
        if self.channel.receive(memoryview(b""), head, until, [self.handle]) is None:
            self.check_alive(bytes(head.data))
            raise SandboxError(f"the sandbox did not start in {START_TIMEOUT_S:g} seconds")

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Have the supervisor run a program. Raises `SandboxError`."""
        self.check_alive()
        tree, head = self._living(), Head(PROGRAM_HEAD_BYTES)
        self.channel.drain(Head(0))  # of what an earlier program left running
        before = tree.pids()
        words = [b"run", str(len(argv)).encode(), *(word.replace("\0", "").encode(errors="replace") for word in argv)]
        until = time.monotonic() + timeout_s
        code = self.channel.receive(self.channel.send(words), head, until, [self.handle])
        if timed_out := code is None:
            for _ in range(20):
                tree.kill(tree.pids() - before)
                if self.channel.receive(memoryview(b""), head, time.monotonic() + 0.1, [self.handle]) is not None:
                    break
        self.check_alive()
        return Ran(bytes(head.data), code, head.cut, timed_out)

    def check_alive(self, printed: bytes = b"") -> None:
        """Raise `SandboxError` if bubblewrap is not running."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        if self.handle < 0 or poll.poll(0):
            raise SandboxError(self.complaint(printed))

    def complaint(self, printed: bytes = b"") -> str:
        """One line about the sandbox's end; `printed` is the standard error read so far."""
        head = Head(1000)
        head.add(printed[-500:])
        with contextlib.suppress(OSError):
            head.add(os.read(self.errors.ours, 500))
        lines = bytes(head.data).decode(errors="replace").strip().splitlines()
        return f"the sandbox ended: {lines[-1]}" if lines else "the sandbox ended"

    def close(self) -> None:
        """End all processes inside and release all resources. Call it once."""
        if self.tree is not None:
            WATCH.remove(self.tree)
        if self.handle >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)  # what is inside dies with it
            poll = select.poll()
            poll.register(self.handle, select.POLLIN)
            poll.poll(1000 * _CLOSE_TIMEOUT_S)
            os.close(self.handle)
            self.handle = -1
        for pipe in (self.requests, self.commands, self.answers, self.results, self.output, self.errors):
            pipe.close()

    def _living(self) -> ProcessTree:
        if self.tree is None:
            raise SandboxError("the sandbox is closed")
        return self.tree

    def _supervisor(self, numbers: Sequence[int]) -> list[str]:
        options = self._options
        own = limits(memory_mib=options.memory_mib, disk_mib=options.disk_mib, processes=options.processes)
        spare = limits(
            memory_mib=options.memory_mib,
            disk_mib=options.disk_mib,
            processes=options.processes + _SPARE_PROCESSES,
        )
        pipes = map(str, numbers)
        return ["/bin/bash", "-c", SUPERVISOR, "supervisor", *pipes, own, spare, SHELL, SHELL_PATH, PROGRAM_PATH]


def spare_processes(options: OsOptions) -> int:
    """The number of processes for the agent, plus spare ones for the task."""
    return options.processes + _SPARE_PROCESSES


def _inside(environment: Mapping[str, str]) -> list[str]:
    argv = ["--new-session", "--clearenv"]
    for name, value in {**environment, "PATH": PROGRAM_PATH}.items():
        argv += ["--setenv", name, value]
    argv += ["--cap-drop", "ALL"]
    for name in _CAPABILITIES:
        argv += ["--cap-add", f"CAP_{name}"]
    return argv


def _found(name: str) -> str:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if os.access(path := Path(directory) / name, os.X_OK):
            return str(path)
    raise SandboxError(f"{name} is not on PATH")


@lru_cache(maxsize=1)
def _filter_fd() -> int:
    fd = os.memfd_create("gymfleet-os-filter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, seccomp_filter())
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _reopened(fd: int) -> int:
    """Reopen the file to read it from its start, independently of other readers."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
