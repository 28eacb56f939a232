"""A sandbox kept shut by bubblewrap: namespaces, a private file system in memory, a system call filter.

The outside sees an ordinary user: `nobody`, where the server is root, else the
server's own. Inside it is root of a user namespace, with the capabilities that
change files' owners and users, and none that reaches the kernel.
"""

import contextlib
import fcntl
import json
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Final

from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import (
    ENVIRONMENT,
    HEAD_BYTES,
    PROGRAM_HEAD_BYTES,
    PROGRAM_PATH,
    SHELL_PATH,
    Head,
    Ran,
    SandboxError,
)
from gymfleet_envs.os.sandbox.cgroup import ControlGroup
from gymfleet_envs.os.sandbox.channel import Channel, Pipe
from gymfleet_envs.os.sandbox.image import HOSTNAME, image
from gymfleet_envs.os.sandbox.processes import ProcessTree
from gymfleet_envs.os.sandbox.seccomp import seccomp_filter
from gymfleet_envs.os.sandbox.supervisor import SHELL, SUPERVISOR, limits
from gymfleet_envs.os.sandbox.watch import WATCH

NOBODY: Final = 65534
PROGRAMS: Final = ("bash", "setpriv", "tar")
"""What the sandbox's own programs need inside."""
_FIRST_SUBORDINATE: Final = 1_000_000_001
_USERS: Final = 65_535
_SHOWN: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "libexec", "share", "include", "games")
_CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETUID", "SETGID", "SETPCAP")
_START_TIMEOUT_S: Final = 20.0
_GRACE_S: Final = 1.0
_SPARE_PROCESSES: Final = 32  # so that the task's programs can start when the agent's have used theirs up
_MIB: Final = 1 << 20

# bubblewrap dies with the *thread* that started it (PR_SET_PDEATHSIG); this one lives as long as the process.
_STARTER: Final = ThreadPoolExecutor(1, thread_name_prefix="os-starter")


class Bubblewrap:
    """One sandbox. Calls come from one thread at a time.

    Args:
        ranged: give the inside 65,536 users of its own; needs a server that is root.
    """

    def __init__(self, options: OsOptions, *, ranged: bool | None = None) -> None:
        self._options = options
        self._ranged = os.geteuid() == 0 if ranged is None else ranged
        self._requests, self._commands = Pipe.inwards(), Pipe.inwards()
        self._answers, self._results, self._output, self._errors = (Pipe.outwards() for _ in range(4))
        self._process: subprocess.Popen[bytes] | None = None
        self._tree: ProcessTree | None = None
        self._group: ControlGroup | None = None
        self._handles: list[int] = []
        self._shell_pid = 0
        self._shell_handle = -1
        self._closed = False
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def shell(self, command: str, timeout_s: float) -> Ran:
        """Run in the session's shell. Raises `SandboxError`."""
        if self._shell_handle < 0:
            self._start_shell()
        tree, head = self._alive(), Head(HEAD_BYTES)
        channel = self._shell_channel
        before = tree.pids()
        ends = (self._shell_handle, self._handles[0])
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
        self._check_alive()
        return Ran(bytes(head.data), None if timed_out else code, head.cut, timed_out, ended)

    def program(self, argv: Sequence[str], timeout_s: float) -> Ran:
        """Run beside the shell. Raises `SandboxError`."""
        tree, head = self._alive(), Head(PROGRAM_HEAD_BYTES)
        channel = self._program_channel
        channel.drain(Head(0))  # of what an earlier program left running
        before = tree.pids()
        words = [b"run", str(len(argv)).encode(), *(word.replace("\0", "").encode(errors="replace") for word in argv)]
        until = time.monotonic() + timeout_s
        code = channel.receive(channel.send(words), head, until, self._handles[:1])
        if timed_out := code is None:
            for _ in range(20):
                tree.kill(tree.pids() - before)
                if channel.receive(memoryview(b""), head, time.monotonic() + 0.1, self._handles[:1]) is not None:
                    break
        self._check_alive()
        return Ran(bytes(head.data), code, head.cut, timed_out)

    def close(self) -> None:
        """End all and give everything back. May be called again."""
        if self._closed:
            return
        self._closed = True
        if self._tree is not None:
            WATCH.remove(self._tree)
        if self._process is not None:
            self._process.kill()  # what is inside dies with it
            self._process.wait()
        self._forget_shell()
        pipes = (self._requests, self._commands, self._answers, self._results, self._output, self._errors)
        theirs = [pipe.theirs for pipe in pipes if self._process is None or pipe is self._commands]
        for fd in (*self._handles, *(pipe.ours for pipe in pipes), *theirs):
            os.close(fd)
        self._handles = []
        if self._group is not None:
            self._group.close()

    def __del__(self) -> None:
        """Of a sandbox that nobody closed, no process may stay."""
        if hasattr(self, "_closed"):
            self.close()

    def _start(self) -> None:
        options = self._options
        with contextlib.ExitStack() as stack:
            information, gate = Pipe.outwards(), Pipe.inwards()
            stack.callback(os.close, information.ours)
            stack.callback(os.close, gate.ours)
            files = [_reopened(_image_fd(options.rootfs)), _reopened(_filter_fd())]
            pipes = (self._requests, self._answers, self._commands, self._results, self._output)
            passed = [*(pipe.theirs for pipe in pipes), *files, information.theirs, gate.theirs, self._errors.theirs]
            argv = [*self._bwrap(files[1], information.theirs, gate.theirs), *self._supervisor(files[0])]
            try:
                self._process = _STARTER.submit(self._popen, argv, passed).result()
            except OSError as error:
                raise SandboxError(f"bwrap cannot be started: {error.strerror}") from None
            finally:
                for fd in files:
                    os.close(fd)
                for fd in (information.theirs, gate.theirs):
                    os.close(fd)
                if self._process is not None:
                    for pipe in (*pipes, self._errors):
                        if pipe is not self._commands:
                            os.close(pipe.theirs)
            self._handles.append(os.pidfd_open(self._process.pid))
            first = self._first(information.ours)
            self._admit(first)
            os.write(gate.ours, b"1")
        self._tree = ProcessTree(first)
        self._program_channel = Channel(self._requests.ours, self._answers.ours, self._errors.ours)
        self._start_shell()
        WATCH.add(
            self._tree,
            memory_bytes=options.memory_mib * _MIB,
            processes=4 * (options.processes + _SPARE_PROCESSES),  # each user inside may have its share
        )

    def _popen(self, argv: list[str], passed: list[int]) -> "subprocess.Popen[bytes]":
        root = os.geteuid() == 0
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors.theirs,
            pass_fds=passed,
            cwd="/",
            env={},
            user=NOBODY if root else None,
            group=NOBODY if root else None,
            extra_groups=[] if root else None,
            start_new_session=True,
        )

    def _bwrap(self, seccomp_fd: int, info_fd: int, gate_fd: int) -> list[str]:
        size = str(self._options.disk_mib * _MIB)
        argv = [_found("bwrap"), "--unshare-user", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        argv += ["--unshare-cgroup-try", "--uid", "0", "--gid", "0", "--hostname", HOSTNAME]
        argv += ["--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
        for name, value in {**ENVIRONMENT, "PATH": PROGRAM_PATH}.items():
            argv += ["--setenv", name, value]
        argv += ["--size", size, "--tmpfs", "/", "--perms", "0755", "--dir", "/usr"]
        argv += [*self._shown(), "--proc", "/proc", "--dev", "/dev", "--size", size, "--perms", "1777"]
        # Read-only, else /dev would be a second disk, without a limit.
        argv += ["--tmpfs", "/dev/shm", "--remount-ro", "/dev"]  # noqa: S108 - inside
        for name in _CAPABILITIES:
            argv += ["--cap-add", f"CAP_{name}"]
        argv += ["--seccomp", str(seccomp_fd), "--info-fd", str(info_fd)]
        return [*argv, "--userns-block-fd" if self._ranged else "--block-fd", str(gate_fd), "--"]

    def _shown(self) -> Iterator[str]:
        rootfs = self._options.rootfs
        for name in _SHOWN:
            if (rootfs / "usr" / name).is_dir():
                yield from ("--ro-bind", str(rootfs / "usr" / name), f"/usr/{name}")
            top = rootfs / name
            if top.is_symlink():
                yield from ("--symlink", f"usr/{name}", f"/{name}")
            elif top.is_dir() and name not in {"share", "include", "games", "libexec"}:
                yield from ("--ro-bind", str(top), f"/{name}")

    def _supervisor(self, image_fd: int) -> Iterator[str]:
        options = self._options
        yield from ("/bin/bash", "-c", SUPERVISOR, "supervisor")
        pipes = (self._requests, self._answers, self._commands, self._results, self._output)
        yield from (str(pipe.theirs) for pipe in pipes)
        own = limits(memory_mib=options.memory_mib, disk_mib=options.disk_mib, processes=options.processes)
        spare = limits(
            memory_mib=options.memory_mib,
            disk_mib=options.disk_mib,
            processes=options.processes + _SPARE_PROCESSES,
        )
        yield from (str(image_fd), own, spare, SHELL, SHELL_PATH, PROGRAM_PATH)

    def _first(self, information: int) -> int:
        """The host's process id of the first process inside, as bubblewrap tells it."""
        poll = select.poll()
        poll.register(information, select.POLLIN)
        poll.register(self._handles[0], select.POLLIN)
        text, until = b"", time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < until:
            poll.poll(1000 * _START_TIMEOUT_S)
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(information, 4096)
                text += chunk
                if not chunk:
                    break
                with contextlib.suppress(json.JSONDecodeError):
                    return int(json.loads(text)["child-pid"])
        raise SandboxError(self._complaint())

    def _admit(self, first: int) -> None:
        """Before anything runs inside: its users, and its control group."""
        options = self._options
        try:
            if self._ranged:
                for name in ("uid_map", "gid_map"):
                    Path(f"/proc/{first}/{name}").write_text(f"0 {NOBODY} 1\n1 {_FIRST_SUBORDINATE} {_USERS}\n")
        except OSError as error:
            raise SandboxError(f"the user namespace gets no users: {error.strerror}") from None
        if options.cgroups:
            self._group = ControlGroup(
                options.cgroups,
                f"gymfleet-os-{first}",
                memory_mib=options.memory_mib,
                processes=options.processes + _SPARE_PROCESSES,
                cpus=options.cpus,
                pid=first,
            )

    def _start_shell(self) -> None:
        tree, channel, head = self._alive(), self._program_channel, Head(HEAD_BYTES)
        unread = struct.unpack("i", fcntl.ioctl(self._commands.theirs, termios.FIONREAD, bytes(4)))[0]
        if unread:  # a command that the shell before did not live to read
            os.read(self._commands.theirs, unread)
        self._shell_channel = Channel(self._commands.ours, self._results.ours, self._output.ours)
        until = time.monotonic() + _START_TIMEOUT_S
        inner = channel.receive(channel.send([b"shell", b"0"]), head, until, self._handles[:1])
        outer = None if inner is None else tree.outside(inner)
        if outer is None:
            self._check_alive(bytes(head.data))
            raise SandboxError("the shell did not start")
        self._shell_pid, self._shell_handle = outer, os.pidfd_open(outer)

    def _forget_shell(self) -> None:
        """It is gone; the next command starts another."""
        if self._shell_handle >= 0:
            os.close(self._shell_handle)
            self._shell_handle = -1

    def _alive(self) -> ProcessTree:
        if self._closed or self._tree is None:
            raise SandboxError("the sandbox is closed")
        self._check_alive()
        return self._tree

    def _check_alive(self, printed: bytes = b"") -> None:
        if self._process is None or self._process.poll() is not None:
            raise SandboxError(self._complaint(printed))

    def _complaint(self, printed: bytes = b"") -> str:
        """In one line; `printed` is what was read of its standard error."""
        head = Head(1000)
        head.add(printed[-500:])
        with contextlib.suppress(OSError):
            head.add(os.read(self._errors.ours, 500))
        lines = bytes(head.data).decode(errors="replace").strip().splitlines()
        return f"the sandbox ended: {lines[-1]}" if lines else "the sandbox ended"


def missing_programs(rootfs: Path) -> list[str]:
    """Of what has to be in the sandbox's /usr/bin or /bin."""
    return [name for name in PROGRAMS if not any((rootfs / place / name).exists() for place in ("usr/bin", "bin"))]


def _found(name: str) -> str:
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if os.access(path := Path(directory) / name, os.X_OK):
            return str(path)
    raise SandboxError(f"{name} is not on PATH")


@lru_cache(maxsize=8)
def _image_fd(rootfs: Path) -> int:
    return _in_memory("gymfleet-os-image", image(rootfs))


@lru_cache(maxsize=1)
def _filter_fd() -> int:
    return _in_memory("gymfleet-os-filter", seccomp_filter())


def _in_memory(name: str, content: bytes) -> int:
    fd = os.memfd_create(name)
    os.write(fd, content)
    return fd


def _reopened(fd: int) -> int:
    """The same content, read from its start, whoever else reads it now."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
