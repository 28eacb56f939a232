"""What the kernel says of a process: time, memory, threads, children."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """User and system time so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of all of them together, pages shared among them counted once per process."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")


def num_threads(pid: int) -> int:
    """Threads now."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def family(pid: int) -> list[int]:
    """The process and all that descend from it and live."""
    found = [pid]
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            for child in map(int, (thread / "children").read_text(encoding="utf-8").split()):
                found += family(child)
    return found


def num_files(pid: int) -> int:
    """Open file descriptors now."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
