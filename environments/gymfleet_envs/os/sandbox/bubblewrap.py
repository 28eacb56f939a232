"""A sandbox isolated by bubblewrap: namespaces, its own layer over a prepared root, a system call filter.

Seen from outside, it runs as an ordinary user: `nobody` if the server is root, else
the server's user. Inside, it is root of a user namespace, with the capabilities to
change file owners and to switch users, and none that reaches the kernel.
"""

import contextlib
import fcntl
import json
import os
import select
import struct
import termios
import time
from collections.abc import Sequence
from typing import Any, Final

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import CHECK_ENVIRONMENT, ENVIRONMENT, HEAD_BYTES, Head, Ran, SandboxError
from gymfleet_envs.os.sandbox.cgroup import ControlGroup
from gymfleet_envs.os.sandbox.cgroup_search import parents
from gymfleet_envs.os.sandbox.channel import Channel, Pipe
from gymfleet_envs.os.sandbox.launching import StewardClient
from gymfleet_envs.os.sandbox.processes import ProcessTree
from gymfleet_envs.os.sandbox.room import START_TIMEOUT_S, Room, spare_processes
from gymfleet_envs.os.sandbox.rootfs import prepared_root
from gymfleet_envs.os.sandbox.skeleton import HOSTNAME
from gymfleet_envs.os.sandbox.steward import AGENT_ROOT, AGENT_SHM, CHECK_ROOT, CHECK_SHM, PIDNS

_GRACE_S: Final = 1.0
_INODES_PER_MIB: Final = 256
_MIB: Final = 1 << 20


class Bubblewrap:
    """One sandbox. Calls come from one thread at a time.

    Args:
        ranged: give the sandbox its own 65,536 users; requires the server to be root.
    """

    def __init__(self, options: OsOptions, *, ranged: bool | None = None) -> None:
        self._options = options
        self._closed = False
        self._group: ControlGroup | None = None
        self._checks: Room | None = None
        self._unseen: tuple[str, ...] = ()
        self._shell_pid = 0
        self._shell_handle = -1
        ranged = os.geteuid() == 0 if ranged is None else ranged
        root = os.open(prepared_root(options.rootfs, options.root_cache), os.O_PATH | os.O_CLOEXEC)
        try:
            self._steward = StewardClient()
            self._room = Room(self._steward, options)
            try:
                self._steward.ask("open", [root], ranged=ranged, **self._sizes())
                self._start()
            except BaseException:
                self.close()
                raise
        finally:
            os.close(root)

    def shell(self, command: str, timeout_s: float) -> Ran:
        """Run in the session's shell. Raises `SandboxError`."""
        tree = self._alive()
        if self._shell_handle < 0:
            self._start_shell()
        head, channel = Head(HEAD_BYTES), self._shell_channel
        before = tree.pids()
        ends = (self._shell_handle, self._room.handle)
        until = time.monotonic() + timeout_s
        words = [command.replace("\0", "").encode(errors="replace")]
        code = channel.receive(channel.send(words), head, until, ends)
        timed_out = code is None and time.monotonic() >= until
        if timed_out:
            tree.kill_new(before)
            channel.receive(memoryview(b""), head, time.monotonic() + _GRACE_S, ends)
            ended = not channel.answered
            if ended:
                tree.kill_new(before - {self._shell_pid})
                channel.drain(head)
        else:
            ended = code is None
        if ended:
            self._forget_shell()
        self._room.check_alive()
        return Ran(bytes(head.data), None if timed_out else code, head.cut, timed_out, ended)

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run a program outside the session's shell. Raises `SandboxError`."""
        self._alive()
        return self._room.program(argv, timeout_s)

    def seal(self) -> None:
        """Take all files that exist now as the task's. Raises `SandboxError`."""
        self._alive()
        self._steward.ask("seal")

    def check(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run in a fresh root that contains the agent's files. Raises `SandboxError`."""
        tree = self._alive()
        if self._checks is None:
            tree.stop()
            self._unseen = tuple(self._steward.ask("view", **self._sizes())["hidden"])
            self._checks = Room(self._steward, self._options)
            self._checks.start(_checks_arguments(), {}, CHECK_ENVIRONMENT, tree.first)
            self._checks.watch(self._checks.pid)
            self._checks.await_supervisor()
        return self._checks.program(argv, timeout_s)

    @property
    def unseen(self) -> tuple[str, ...]:
        """Paths where checks do not see the agent's changes."""
        return self._unseen

    def digest(self) -> str:
        """A digest of the session's own layer. Raises `SandboxError`."""
        self._alive()
        return str(self._steward.ask("digest")["digest"])

    def close(self) -> None:
        """End all processes and release all resources. May be called again."""
        if self._closed:
            return
        self._closed = True
        for room in (self._checks, self._room):
            if room is not None:
                room.close()
        self._steward.close()
        self._forget_shell()
        if self._group is not None:
            self._group.close()

    def __del__(self) -> None:
        """Close the sandbox if nobody did, so that none of its processes stays."""
        if hasattr(self, "_room"):
            self.close()

    def _sizes(self) -> dict[str, Any]:
        return {"size_bytes": self._options.disk_mib * _MIB, "inodes": self._options.disk_mib * _INODES_PER_MIB}

    def _start(self) -> None:
        room = self._room
        information, gate = Pipe.outwards(), Pipe.inwards()
        try:
            arguments = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
            arguments += ["--die-with-parent", "--as-pid-1", "--hostname", HOSTNAME, *_mounts(AGENT_ROOT, AGENT_SHM)]
            room.start(arguments, {"--info-fd": information.theirs, "--block-fd": gate.theirs}, ENVIRONMENT)
            information.close_theirs()
            first = self._first(information.ours)
            self._admit(first)
            os.write(gate.ours, b"1")
            room.watch(first)
        finally:
            information.close()
            gate.close()
        self._start_shell()

    def _first(self, information: int) -> int:
        """Read the first inside process's id on the host, which bubblewrap reports."""
        poll = select.poll()
        poll.register(information, select.POLLIN)
        poll.register(self._room.handle, select.POLLIN)
        text, until = b"", time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            poll.poll(1000 * START_TIMEOUT_S)
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(information, 4096)
                text += chunk
                if not chunk:
                    break
                with contextlib.suppress(json.JSONDecodeError):
                    return int(json.loads(text)["child-pid"])
        raise SandboxError(self._room.complaint())

    def _admit(self, first: int) -> None:
        """Put the first process into its control group, before anything runs inside."""
        options = self._options
        if directories := parents(options.cgroups):
            self._group = ControlGroup(
                directories,
                f"gymfleet-os-{first}",
                memory_mib=options.memory_mib,
                processes=spare_processes(options),
                cpus=options.cpus,
                pid=first,
            )

    def _start_shell(self) -> None:
        room, head = self._room, Head(HEAD_BYTES)
        tree = self._alive()
        unread = struct.unpack("i", fcntl.ioctl(room.commands.theirs, termios.FIONREAD, bytes(4)))[0]
        if unread:  # a command that the shell before did not live to read
            os.read(room.commands.theirs, unread)
        self._shell_channel = Channel(room.commands.ours, room.results.ours, room.output.ours)
        until = time.monotonic() + START_TIMEOUT_S
        inner = room.channel.receive(room.channel.send([b"shell", b"0"]), head, until, [room.handle])
        outer = None if inner is None else tree.outside(inner)
        if outer is None:
            room.check_alive(bytes(head.data))
            raise SandboxError("the shell did not start")
        self._shell_pid, self._shell_handle = outer, os.pidfd_open(outer)

    def _forget_shell(self) -> None:
        """Forget a shell that is gone; the next command starts another."""
        if self._shell_handle >= 0:
            os.close(self._shell_handle)
            self._shell_handle = -1

    def _alive(self) -> ProcessTree:
        if self._closed or self._room.tree is None:
            raise SandboxError("the sandbox is closed")
        self._room.check_alive()
        return self._room.tree


def _mounts(root: str, shared_memory: str) -> list[str]:
    argv = ["--bind", root, "/", "--proc", "/proc", "--dev", "/dev", "--bind", shared_memory, "/dev/shm"]  # noqa: S108
    # Read-only, or /dev would be a second disk without a limit.
    return [*argv, "--remount-ro", "/dev"]


def _checks_arguments() -> list[str]:
    """Return arguments that run checks in the agent's namespaces, except for mounts.

    `--die-with-parent` is not used: bubblewrap starts its program through an intermediate process that enters `PIDNS`
    and ends, and on a busy machine that process can end after its child has asked to die with its parent. When the
    agent's first process dies, the checks die with it.
    As /proc is read-only, an agent's program that a check has to run cannot write into the check's memory; tracing is
    denied to all.
    """
    return ["--pidns", str(PIDNS), *_mounts(CHECK_ROOT, CHECK_SHM), "--remount-ro", "/proc"]
