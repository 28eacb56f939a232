"""Memory use of the shards, and the ceiling that the kernel enforces for each of their processes."""

import contextlib
import os
from collections.abc import Collection
from typing import Final

import psutil

MIB: Final = 1024 * 1024
_HEADROOM_BYTES: Final = 1024 * MIB
"""Address space that is reserved and not used: thread stacks, arenas."""


def ceiling_bytes(limit_mb: int) -> int:
    """Return how much one process of a shard may allocate: a single absurd allocation fails and harms no other."""
    return 2 * limit_mb * MIB + _HEADROOM_BYTES


def resident_bytes(leaders: Collection[int]) -> dict[int, int]:
    """Return the resident memory of each process session, by its leader: the shard and all that it started.

    Blocks for 1 to 2 us per process of the machine and about 0.1 ms per process of these sessions.
    """
    held = dict.fromkeys(leaders, 0)
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, psutil.Error):  # it has ended, or is hidden from this user
            # psutil has no sessions, and asking for this one number spares reading the other processes' files.
            if (leader := os.getsid(pid)) in held:
                held[leader] += psutil.Process(pid).memory_info().rss
    return held
