"""What the shards hold in memory, and the ceiling that the kernel keeps for each of their processes."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
_HEADROOM_BYTES: Final = 1024 * MIB
"""Address space that is taken and not used: stacks of threads, arenas."""
_STATE: Final = 0
_SESSION: Final = 3
_RSS: Final = 21
"""Places in `/proc/PID/stat` behind the name of the program; see proc(5)."""


def ceiling_bytes(limit_mb: int) -> int:
    """What one process of a shard may ask for: a single absurd allocation fails, and harms nobody else."""
    return 2 * limit_mb * MIB + _HEADROOM_BYTES


def resident_bytes(leaders: Collection[int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Resident memory of each process session, by its leader: the shard and whatever it started.

    Blocks for about 10 us per process of the machine. Empty where there is no procfs.
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
