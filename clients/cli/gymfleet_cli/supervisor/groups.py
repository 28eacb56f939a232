"""Process groups: who is in one, how to end one, and the guard that ends them when their owner dies.

Standard library alone: the guard runs this file as a script, in a bare interpreter.
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
    """Clock ticks since boot: with the pid, a process's identity."""


def process_stat(pid: int) -> ProcessStat | None:
    """None when there is no such process, or only its exit status is left."""
    try:
        # The command's name stands in brackets and may hold anything, brackets and spaces too.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        stat = ProcessStat(pid=pid, state=fields[0], session=int(fields[3]), started_ticks=int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None
    return None if stat.state in "ZX" else stat


def members(leader: int) -> list[int]:
    """Living processes of the session that `leader` began, itself included."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in pids if (stat := process_stat(pid)) is not None and stat.session == leader]


def _signal(pid: int, signum: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _never() -> bool:
    return False


def stop_groups(leaders: Iterable[int], *, grace_s: float, hurry: Callable[[], bool] = _never) -> None:
    """SIGTERM to each leader, which ends its children in order; after `grace_s` SIGKILL to all that is left.

    `hurry` is asked again and again: once it is true, nothing is waited for.
    """
    waiting = set(leaders)
    for leader in waiting:
        _signal(leader, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while waiting:
        late = time.monotonic() >= deadline or hurry()
        for leader in sorted(waiting):
            # Children that outlived their leader have nobody left to end them.
            if process_stat(leader) is None or late:
                left = members(leader)
                for pid in left:
                    _signal(pid, signal.SIGKILL)
                if not left:
                    waiting.discard(leader)
        if waiting:
            time.sleep(_POLL_S)


def guard() -> None:
    """Read `+leader` and `-leader` lines; at the end of the input stop all that were not taken back.

    The input is a pipe from the owner. It ends when the owner does, kill -9 included.
    """
    leaders: set[int] = set()
    for line in sys.stdin:
        sign, number = line[:1], line[1:].strip()
        if number.isdigit():
            (leaders.add if sign == "+" else leaders.discard)(int(number))
    stop_groups(leaders, grace_s=GUARD_GRACE_S)


if __name__ == "__main__":
    guard()
