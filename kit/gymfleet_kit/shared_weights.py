"""Folders of weights in shared memory: who uses one holds it, and one that nobody holds is swept.

Memory outlives a process that was killed, so a folder must be recognisable as left. A lock of the system's is: it ends
with the process that has it. Everyone who uses a folder has a shared lock on a file in it, and who sweeps must get it
alone.
"""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - where Linux has it
_PREFIX: Final = "gymfleet-weights-"
_LOCK: Final = ".held"


def is_shared(path: Path, root: Path = SHARED_MEMORY) -> bool:
    """Return whether a version's directory would lie in such a folder."""
    return path.parent.parent == root and path.parent.name.startswith(_PREFIX)


class HeldFolder:
    """A folder that no one sweeps until it is let go, or this process ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def made(cls, name: str, root: Path = SHARED_MEMORY) -> Self:
        """Hold the folder of this name, which only this user can read; make it if it is not there."""
        path = root / f"{_PREFIX}{name}"
        while True:
            path.mkdir(mode=0o700, exist_ok=True)
            if (held := cls.of(path)) is not None:
                return held

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Hold a folder that is there; None if it is not, or was just swept."""
        try:
            lock = _opened(path)
        except OSError:
            return None
        fcntl.flock(lock, fcntl.LOCK_SH)
        if _is_there(path, lock):
            return cls(path, lock)
        os.close(lock)
        return None

    def let_go(self) -> None:
        """Hold it no longer; doing so again changes nothing."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(root: Path = SHARED_MEMORY) -> list[Path]:
    """Delete the folders of this user that nobody holds, and return them."""
    swept = []
    for path in sorted(root.glob(f"{_PREFIX}*")):
        with suppress(OSError):  # another one's, or somebody was faster
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            lock = _opened(path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_there(path, lock):
                    shutil.rmtree(path)
                    swept.append(path)
            finally:
                os.close(lock)
    return swept


def _opened(path: Path) -> int:
    return os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _is_there(path: Path, lock: int) -> bool:
    """Return whether the file that was locked is still the folder's."""
    try:
        return os.path.samestat(os.fstat(lock), (path / _LOCK).stat())
    except OSError:
        return False
