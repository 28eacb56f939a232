"""The few system calls that Python does not provide: namespaces and mounts."""

import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
NOBODY: Final = 65534
_FIRST_SUBORDINATE: Final = 1_000_000_001
_USERS: Final = 65_535
"""Users that a session has in addition to root, if the server is root."""
_MS_PRIVATE, _MS_REC = 1 << 18, 1 << 14
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _SIGKILL = 1, 4, 9
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def enter_user_namespace(*, ranged: bool) -> None:
    """Become root of a user namespace and the owner of a copy of all mounts, whose changes nothing outside sees.

    With `ranged`, for which the process must be root, the inside has 65,536 users: `nobody` and subordinate ones.
    Without it, the inside has only the process's own user (`nobody` for root). Raises OSError.
    """
    parent = os.getpid()
    child, wait, go = _ask_child(lambda: _write_maps(parent)) if ranged else (-1, -1, -1)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        _checked(_LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))  # else /proc/self is the former user's
    user, group = os.geteuid(), os.getegid()
    _checked(_LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    if ranged:
        os.write(go, b"1")
        os.close(go)
        answer = os.read(wait, 1)
        os.close(wait)
        os.waitpid(child, 0)
        if answer != b"1":
            raise PermissionError(1, "the user namespace gets no users")
    else:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    mount("none", "/", "", _MS_PRIVATE | _MS_REC)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system. Raises OSError."""
    _checked(_LIBC.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()))


def join(pid: int, *names: str) -> None:
    """Enter namespaces of another process. Raises OSError."""
    for name in names:
        handle = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
        try:
            _checked(_LIBC.setns(handle, 0))
        finally:
            os.close(handle)


def receive(connection: socket.socket, max_bytes: int, max_handles: int) -> tuple[bytes, list[int]]:
    """Receive a message and its descriptors, which started programs do not inherit."""
    data, handles, _, _ = socket.recv_fds(connection, max_bytes, max_handles)
    for handle in handles:
        os.set_inheritable(handle, False)  # recv_fds has no flag for it in Python 3.11
    return data, handles


def die_with_parent() -> None:
    """Have the kernel end this process when the one that forked it ends."""
    _checked(_LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))


def _write_maps(pid: int) -> None:
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{pid}/{name}").write_text(f"0 {NOBODY} 1\n1 {_FIRST_SUBORDINATE} {_USERS}\n")


def _ask_child(work: Callable[[], None]) -> tuple[int, int, int]:
    """Fork a child that keeps its privileges and works when told to; return its id, answer pipe and start pipe."""
    answer, child_answer = os.pipe()
    child_wait, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        try:
            if os.read(child_wait, 1):
                work()
                os.write(child_answer, b"1")
        finally:
            os._exit(0)
    os.close(child_answer)
    os.close(child_wait)
    return child, answer, tell


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
