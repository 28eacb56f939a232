"""Bounds a session's memory and processes as a whole, where no control group does.

Process limits bound each process; many small ones could still fill the machine. One
thread adds up what each sandbox holds, or the kernel for it, and ends the one that
holds too much.
"""

import threading
import time
from typing import Final

from gymfleet_envs.os.sandbox.kernel_memory import kernel_bytes
from gymfleet_envs.os.sandbox.processes import ProcessTree

_EVERY_S: Final = 0.2


class Watch:
    """The sandboxes under watch. Safe to use from any thread; its own one ends with the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[ProcessTree, tuple[int, int]] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, tree: ProcessTree, *, memory_bytes: int, processes: int) -> None:
        """Begin to watch."""
        with self._lock:
            self._watched[tree] = (memory_bytes, processes)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="os-watch", daemon=True)
                self._thread.start()
        self._wake.set()

    def remove(self, tree: ProcessTree) -> None:
        """Watch it no longer."""
        with self._lock:
            self._watched.pop(tree, None)

    def look(self) -> None:
        """One round: the sandbox that holds too much loses all processes but its first, shell included."""
        with self._lock:
            watched = list(self._watched.items())
        for tree, (memory_bytes, processes) in watched:
            count, size = tree.usage()
            if count > processes or size + kernel_bytes(tree.first, tree.pids()) > memory_bytes:
                tree.kill(tree.pids())  # once: what starts after it, such as a new shell, has not earned it

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self.look()
            with self._lock:
                if not self._watched:
                    self._wake.clear()
            time.sleep(_EVERY_S)


WATCH: Final = Watch()
