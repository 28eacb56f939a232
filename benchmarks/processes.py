"""What the kernel says of processes: time, memory, descendants."""

from collections.abc import Iterable

import psutil


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of all of them together, pages shared among them counted once per process."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)


def family(pid: int) -> list[int]:
    """The process, its children, and then all that descend from those."""
    process = psutil.Process(pid)
    return [pid, *(child.pid for child in process.children(recursive=True))]
