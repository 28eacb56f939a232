"""Bounds a session's memory and processes as a whole, where no control group does.

Process limits bound each process; many small ones could still fill the machine. One
thread adds up what each sandbox holds, or the kernel for it, and ends the one that
holds too much.
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
        """One round: the sandbox that holds too much loses all processes but its first, shell included."""
        for tree, (memory_bytes, processes) in self._watched().items():
            count, size = tree.usage()
            if count > processes or size + kernel_bytes(tree.first, tree.pids()) > memory_bytes:
                tree.kill(tree.pids())  # once: what starts after it, such as a new shell, has not earned it

    def _round(self) -> None:
        self.look()


WATCH: Final = Watch()
