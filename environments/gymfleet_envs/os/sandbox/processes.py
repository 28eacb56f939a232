"""The processes of a sandbox as the host sees them: found, measured and ended from outside."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_MAX_FOUND: Final = 20_000
_KIB: Final = 1024
_STILL: Final = frozenset("TtZXx")  # stopped, traced, ended
_STOP_TIMEOUT_S: Final = 2.0
_STOP_PAUSE_S: Final = 0.002


class ProcessTree:
    """All descendants of a sandbox's first process, in its process namespace.

    Orphans become children of that first process, so none leaves the tree.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self._namespace = _namespace(first)

    def pids(self) -> set[int]:
        """Host process ids, without the first process."""
        found: set[int] = set()
        waiting = [self.first]
        while waiting and len(found) < _MAX_FOUND:
            for child in _children(waiting.pop()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return found

    def outside(self, inner: int) -> int | None:
        """Return the host's id of the process with the id `inner` inside."""
        for pid in self.pids():
            with contextlib.suppress(OSError, IndexError):
                if int(_status(pid)["NSpid"].split()[-1]) == inner:
                    return pid
        return None

    def kill(self, pids: Iterable[int]) -> None:
        """End those of the processes that still belong to this sandbox."""
        self._signal(pids, signal.SIGKILL)

    def _signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(OSError):
                handle = os.pidfd_open(pid)
                try:
                    if _namespace(pid) == self._namespace:
                        signal.pidfd_send_signal(handle, number)
                finally:
                    os.close(handle)

    def kill_new(self, before: set[int]) -> None:
        """End all processes not in `before`; repeat a few times, as one may start another meanwhile."""
        for _ in range(10):
            if not (doomed := self.pids() - before):
                return
            self.kill(doomed)

    def stop(self) -> None:
        """Stop all processes; if some cannot be stopped in time, end all."""
        until = time.monotonic() + _STOP_TIMEOUT_S
        while time.monotonic() < until:
            if not (running := [pid for pid in self.pids() if _state(pid) not in _STILL]):
                return
            self._signal(running, signal.SIGSTOP)
            time.sleep(_STOP_PAUSE_S)
        self.kill_new(set())

    def usage(self) -> tuple[int, int]:
        """Return the number of processes, and their bytes of memory, private or shared by mapping."""
        count = size = 0
        for pid in self.pids():
            with contextlib.suppress(OSError, KeyError, ValueError):
                status = _status(pid)
                size += _KIB * sum(int(status[name].split()[0]) for name in ("RssAnon", "RssShmem"))
                count += 1
        return count, size


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(task.path, "children").read_text().split())
    return found


def _state(pid: int) -> str:
    """One letter, as ps shows it; X for a process that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _namespace(pid: int) -> int:
    return os.stat(f"/proc/{pid}/ns/pid").st_ino  # noqa: PTH116 - Path.stat is the same with more steps
