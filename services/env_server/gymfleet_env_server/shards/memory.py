"""Memory use of the shards, and the ceiling that the kernel enforces for each of their processes."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
_HEADROOM_BYTES: Final = 1024 * MIB
"""Address space that is reserved and not used: thread stacks, arenas."""
_STATE: Final = 0
_SESSION: Final = 3
_RSS: Final = 21
"""Positions of fields in `/proc/PID/stat`, counted after the program's name; see proc(5)."""


def ceiling_bytes(limit_mb: int) -> int:
    """Return how much one process of a shard may allocate: a single absurd allocation fails and harms no other."""
    return 2 * limit_mb * MIB + _HEADROOM_BYTES


def resident_bytes(leaders: Collection[int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Return the resident memory of each process session, by its leader: the shard and all that it started.

    Blocks for about 10 us per process of the machine. The result is empty where there is no procfs.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    held = dict.fromkeys(leaders, 0)
    try:
        pids = [entry.name for entry in os.scandir(proc) if entry.name.isdigit()]
    except FileNotFoundError:
        return {}
    for pid in pids:
        try:
            fields = (proc / pid / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        leader = int(fields[_SESSION])
        if leader in held and fields[_STATE] != b"Z":
            held[leader] += int(fields[_RSS]) * page
    return held
