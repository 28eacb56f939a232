"""The directories from which engines load weights: one per version."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gymfleet_trainer.run.torch_thread import TorchThread

_KEPT: Final = 2


class PublishedWeights:
    """Write `vNNNNNN` in a directory and keep the last two.

    Args:
        save: fills a directory; it blocks, and is called in the torch thread.
    """

    def __init__(self, root: Path, save: Callable[[Path], None], worker: TorchThread) -> None:
        self._root = root
        self._save = save
        self._worker = worker

    async def write(self, version: int) -> Path:
        """Write the current weights as those of a version."""
        return await self._worker.run(self._write, version)

    def _write(self, version: int) -> Path:
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"v{version:06d}"
        temporary = self._root / f".writing-{version:06d}"
        for leftover in (*self._root.glob(".writing-*"), path):
            shutil.rmtree(leftover, ignore_errors=True)
        temporary.mkdir()
        self._save(temporary)
        temporary.rename(path)
        # Higher numbers are leftovers: versions were counted anew, because Redis forgot the last one.
        kept = sorted(one for one in self._root.glob("v*") if one <= path)[-_KEPT:]
        for old in {*self._root.glob("v*")} - {*kept}:
            shutil.rmtree(old, ignore_errors=True)
        return path
