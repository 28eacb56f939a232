"""Bounds a session's memory and processes as a whole, where no control group does.

Process limits bound each process; many small ones could still fill the machine. One
thread adds up the memory that each sandbox, and the kernel for it, holds, and ends the
processes of a sandbox that holds too much.
"""

from typing import Final

from gymfleet_envs.os.sandbox.kernel_memory import kernel_bytes
from gymfleet_envs.os.sandbox.processes import ProcessTree
from gymfleet_envs.os.sandbox.watch_thread import WatchThread


class Watch(WatchThread[ProcessTree, tuple[int, int]]):
    """The sandboxes under watch."""

    def __init__(self) -> None:
        super().__init__("os-watch", {}, every_s=0.2)

    def add(self, tree: ProcessTree, *, memory_bytes: int, processes: int) -> None:
        """Begin to watch."""
        self._watch(tree, (memory_bytes, processes))

    def look(self) -> None:
        """Do one round: end all processes but the first, shell included, of each sandbox that holds too much."""
        for tree, (memory_bytes, processes) in self._watched().items():
            count, size = tree.usage()
            if count > processes or size + kernel_bytes(tree.first, tree.pids()) > memory_bytes:
                tree.kill(tree.pids())  # once: what starts after it, such as a new shell, has not earned it

    def _round(self) -> None:
        self.look()


WATCH: Final = Watch()
