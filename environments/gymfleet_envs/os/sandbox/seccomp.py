"""The system call filter: calls with which a process could escape, or probe the kernel, fail.

Root inside a user namespace may mount, make further namespaces and reach kernel code
that ordinary users cannot. The tasks need none of this, so the calls fail with EPERM,
or with ENOSYS where a C library has an alternative.
"""

import errno
import platform
import struct
from dataclasses import dataclass
from typing import Final

_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000  # linux/seccomp.h
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 24, 32  # offsets in struct seccomp_data
_X32_BIT: Final = 0x40000000
_NEW_NAMESPACES: Final = 0x7E020080  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET,TIME} as clone(2) takes them
_CLONE3: Final = 435
_FAMILIES: Final = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6
_NETLINK, _ROUTE = 16, 0  # AF_NETLINK, of which NETLINK_ROUTE lists interfaces
_SET_PIPE_SIZE: Final = 1031  # F_SETPIPE_SZ


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    clone: int
    denied: tuple[int, ...]
    absent: tuple[int, ...]
    """Calls for memory that no process limit counts: memfd_create; System V's shared memory, semaphores and message
    queues; POSIX message queues."""
    unsupported: tuple[int, ...]
    """setxattr, lsetxattr, fsetxattr, setxattrat: their data is in memory that no limit of the file system counts."""
    sockets: tuple[int, ...]
    """socket, socketpair: allowed for the families that programs here need."""
    fcntl: int


_ALIKE: Final = (425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442)
"""io_uring_*, open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, pidfd_getfd, mount_setattr."""
_MACHINES: Final = {
    # ptrace, process_vm_*, kcmp; mount, umount2, pivot_root; unshare, setns; keys; bpf, perf, userfaultfd; kexec,
    # modules, reboot; file handles; quota, swap, acct; clocks; syslog; lookup_dcookie; move_pages, mbind
    "x86_64": _Machine(
        audit=0xC000003E,
        clone=56,
        denied=(
            101, 310, 311, 312, 165, 166, 155, 272, 308, 248, 249, 250, 321, 298, 323, 246, 320, 175, 313, 176, 169,
            303, 304, 179, 167, 168, 163, 164, 227, 159, 305, 103, 212, 279, 237, 172, 173, *_ALIKE,
        ),
        absent=(319, 29, 30, 31, 67, *range(64, 67), *range(68, 72), 220, *range(240, 246)),
        unsupported=(188, 189, 190, 463),
        sockets=(41, 53),
        fcntl=72,
    ),
    "aarch64": _Machine(
        audit=0xC00000B7,
        clone=220,
        denied=(
            117, 270, 271, 272, 40, 39, 41, 97, 268, 217, 218, 219, 280, 241, 282, 104, 294, 105, 273, 106, 142,
            264, 265, 60, 224, 225, 89, 170, 112, 171, 266, 116, 18, 239, 235, *_ALIKE,
        ),
        absent=(279, *range(180, 198)),
        unsupported=(5, 6, 7, 463),
        sockets=(198, 199),
        fcntl=25,
    ),
}  # fmt: skip


def seccomp_filter(machine: str | None = None) -> bytes:
    """The program for `bwrap --seccomp`. Raises KeyError for a machine without a table."""
    table = _MACHINES[machine or platform.machine()]
    denied = _ERRNO | errno.EPERM
    code = [
        _op(_LOAD, _ARCH),
        _op(_JUMP_EQ, table.audit, 1, 0),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
        _op(_JUMP_GE, _X32_BIT, 0, 1),
        _op(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in (_CLONE3, *table.absent):  # clone3 hides its flags behind a pointer; C libraries fall back to clone
        code += [_op(_JUMP_EQ, number, 0, 1), _op(_RETURN, _ERRNO | errno.ENOSYS)]
    for number in table.denied:
        code += [_op(_JUMP_EQ, number, 0, 1), _op(_RETURN, denied)]
    for number in table.unsupported:
        code += [_op(_JUMP_EQ, number, 0, 1), _op(_RETURN, _ERRNO | errno.EOPNOTSUPP)]
    for number in table.sockets:
        code += _only_known_families(number)
    code += [
        _op(_JUMP_EQ, table.fcntl, 0, 4),
        _op(_LOAD, _SECOND_ARGUMENT),
        _op(_JUMP_EQ, _SET_PIPE_SIZE, 0, 1),
        _op(_RETURN, denied),
        _op(_RETURN, _ALLOW),
        _op(_JUMP_EQ, table.clone, 0, 3),
        _op(_LOAD, _FIRST_ARGUMENT),
        _op(_JUMP_SET, _NEW_NAMESPACES, 0, 1),
        _op(_RETURN, denied),
        _op(_RETURN, _ALLOW),
    ]
    return b"".join(code)


def _only_known_families(number: int) -> list[bytes]:
    """Return the filter of a system call whose first argument is an address family and whose third is a protocol."""
    known = [op for family in _FAMILIES for op in (_op(_JUMP_EQ, family, 0, 1), _op(_RETURN, _ALLOW))]
    body = [
        _op(_LOAD, _FIRST_ARGUMENT),
        *known,
        _op(_JUMP_EQ, _NETLINK, 0, 3),
        _op(_LOAD, _THIRD_ARGUMENT),
        _op(_JUMP_EQ, _ROUTE, 0, 1),
        _op(_RETURN, _ALLOW),
        _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT),
    ]
    return [_op(_JUMP_EQ, number, 0, len(body)), *body]


def supported_machine() -> bool:
    """Whether there is a table for this machine's processor."""
    return platform.machine() in _MACHINES


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, k)
