"""Figures of processes from the kernel: time, memory, descendants."""

from collections.abc import Iterable

import psutil


def cpu_seconds(pid: int) -> float:
    """Return the user and system time so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the resident memory of all processes together; pages shared among them count once per process."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def family(pid: int) -> list[int]:
    """Return the process and all its descendants, children before their descendants."""
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]
