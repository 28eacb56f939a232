"""Memory that the kernel holds for a sandbox and charges to no process: sockets and pipes.

It is needed where there is no control group. The figures are upper bounds of what each socket and pipe may take.
"""

import contextlib
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

_PIPE_BYTES: Final = 65_536
"""Counted for each open file, as it may be a pipe; the system call filter keeps pipes from growing."""
_ORDINARY_FILES: Final = 64
"""Number of a process's open files that are not counted: programs have a few."""


def kernel_bytes(first: int, pids: Iterable[int]) -> int:
    """Return the most bytes that a sandbox's sockets and pipes may hold.

    Args:
        first: the sandbox's first process, whose network namespace holds all of its sockets, even those whose last
            descriptor is closed or in transit to another process.
        pids: its other processes, by their ids on the host.
    """
    sockets = tcp = 0
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{first}/net/{name}").read_text().splitlines():
                words = line.split()
                if words[0] == "sockets:":
                    sockets = int(words[2])
                elif words[0] in ("TCP:", "TCP6:"):
                    tcp += int(words[2])
    each, each_tcp = _socket_bytes()
    return sockets * each + tcp * each_tcp + sum(map(_descriptor_bytes, pids))


def _descriptor_bytes(pid: int) -> int:
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:
        return max(0, sum(1 for _ in files) - _ORDINARY_FILES) * _PIPE_BYTES
    return 0


@cache
def _socket_bytes() -> tuple[int, int]:
    """Return the bytes that one socket may hold in its buffers, and those that a TCP socket may hold in addition."""
    net = Path("/proc/sys/net")
    each, tcp = 2 * 212_992, 10 << 20  # the kernel's defaults
    with contextlib.suppress(OSError, ValueError, IndexError):
        each = 2 * int((net / "core/wmem_max").read_text())  # SO_SNDBUF is doubled
        tcp = sum(int((net / f"ipv4/tcp_{which}").read_text().split()[2]) for which in ("rmem", "wmem"))
    return each, tcp
