"""Process groups: their members, how to end them, and the guard that ends them when their owner dies.

This file uses only the standard library, because the guard runs it as a script in a bare interpreter. psutil would not
do for the rest either: it has no sessions, and its start times, which `fleet.json` would keep, shift with the clock.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

GUARD_GRACE_S: Final = 5.0
_POLL_S: Final = 0.05


class ProcessStat(NamedTuple):
    """The part of `/proc/PID/stat` that tells one process from another."""

    pid: int
    state: str
    session: int
    started_ticks: int
    """Clock ticks since boot; together with the pid, they identify a process."""


def process_stat(pid: int) -> ProcessStat | None:
    """Read a process's stat; None if there is no such process, or only its exit status is left."""
    try:
        # The command's name is in parentheses and may contain anything, even parentheses and spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        stat = ProcessStat(pid=pid, state=fields[0], session=int(fields[3]), started_ticks=int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None
    return None if stat.state in "ZX" else stat


def members(leader: int) -> list[int]:
    """Return the living processes of the session that `leader` began, including itself."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if (stat := process_stat(pid)) is not None and stat.session == leader]


def _signal(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _never() -> bool:
    return False


def stop_groups(leaders: Iterable[int], *, grace_s: float, hurry: Callable[[], bool] = _never) -> None:
    """Send SIGTERM to each leader, which ends its children in order; after `grace_s`, SIGKILL all that are left.

    `hurry` is called repeatedly; once it returns true, stop waiting.
    """
    waiting = set(leaders)
    for leader in waiting:
        _signal(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while waiting:
        late = time.monotonic() >= deadline or hurry()
        for leader in sorted(waiting):
            # Nothing else ends children that outlived their leader.
            if process_stat(leader) is None or late:
                left = members(leader)
                for pid in left:
                    _signal(pid, signal.SIGKILL)
                if not left:
                    waiting.discard(leader)
        if waiting:
            time.sleep(_POLL_S)


def guard() -> None:
    """Read `+leader` and `-leader` lines; at the end of the input, stop all leaders that were not withdrawn.

    The input is a pipe from the owner. It ends when the owner ends, even by kill -9.
    """
    leaders: set[int] = set()
    for line in sys.stdin:
        sign, number = line[:1], line[1:].strip()
        if number.isdigit():
            (leaders.add if sign == "+" else leaders.discard)(int(number))
    stop_groups(leaders, grace_s=GUARD_GRACE_S)


if __name__ == "__main__":
    guard()
