"""Versions in shared memory, for rollout services on the same machine."""

import os
from pathlib import Path
from typing import Final

import structlog
from gymfleet_contracts.recipe import RecipeError
from gymfleet_kit.shared_weights import SHARED_MEMORY, HeldFolder, sweep

from gymfleet_trainer.publish.transfers.base import Transfer

log = structlog.get_logger()

_VERSIONS: Final = 3
"""The live version, the previous one, and the one that is being written."""
_OTHERWISE: Final = 'publish.transfer = "disk" needs none'


class SharedMemory(Transfer):
    """A folder named after the run. A resumed run takes its folder again: engines may have the version in it.

    Raises:
        RecipeError: there is no shared memory, or not enough.
    """

    def __init__(self, run_id: str, size_bytes: int, place: Path = SHARED_MEMORY) -> None:
        if not (place.is_dir() and os.access(place, os.W_OK)):
            raise RecipeError(f'publish.transfer = "shared_memory": {place} is not there to be written; {_OTHERWISE}')
        self._place = place
        self._folder = HeldFolder.made(run_id, place)
        self.root = self._folder.path
        for left in sweep(place):
            log.info("shared_memory.swept", path=str(left))
        disk = os.statvfs(place)
        has = disk.f_bavail * disk.f_frsize + sum(file.stat().st_size for file in self.root.rglob("*.safetensors"))
        if has < _VERSIONS * size_bytes:
            self.close()
            raise RecipeError(
                f'publish.transfer = "shared_memory": {place} has {has >> 20} MiB left, and three versions take '
                f"{_VERSIONS * size_bytes >> 20}; {_OTHERWISE}, or give the machine (a container: --shm-size) more"
            )

    def close(self) -> None:
        """Release the folder. The last process with a version in it sweeps it: this one, or a rollout service."""
        self._folder.let_go()
        sweep(self._place)
