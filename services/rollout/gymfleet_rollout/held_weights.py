"""Folders in shared memory from which this service may have to load weights again, held so that nobody sweeps them."""

from collections.abc import Iterable
from pathlib import Path

from gymfleet_kit.shared_weights import SHARED_MEMORY, HeldFolder, is_shared, sweep

from gymfleet_rollout.inference.base import WeightsRejected


class HeldWeights:
    """Holds the folders of the versions that engines have or are getting."""

    def __init__(self, root: Path = SHARED_MEMORY) -> None:
        self._root = root
        self._held: dict[Path, HeldFolder] = {}

    def hold(self, path: Path) -> None:
        """Hold a version's folder if it is in shared memory. Raises WeightsRejected if it is not on this machine."""
        if not is_shared(path, self._root) or path.parent in self._held:
            return
        folder = HeldFolder.of(path.parent)
        if folder is None:
            raise WeightsRejected(
                f'{path} is not in the shared memory that this service sees: publish.transfer = "shared_memory" is for '
                'services on the trainer\'s machine, under its user and with its /dev/shm; elsewhere "disk" is right, '
                "with a run directory that both can read"
            )
        self._held[path.parent] = folder

    def hold_only(self, paths: Iterable[Path]) -> None:
        """Let go of all other folders, and sweep them if nobody else holds them."""
        kept = {path.parent for path in paths}
        gone = [folder for folder in self._held if folder not in kept]
        for folder in gone:
            self._held.pop(folder).let_go()
        if gone:
            sweep(self._root)
