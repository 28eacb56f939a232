"""Folders of weights in shared memory: each user holds the folder, and a folder that nobody holds is swept.

Shared memory outlives a killed process, so an abandoned folder must be recognisable. A lock of the operating system
achieves this: it ends with its process. Every user of a folder has a shared lock on a file in it, and a sweeper must
get an exclusive one.
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
    """Return whether a version's directory would be in such a folder."""
    return path.parent.parent == root and path.parent.name.startswith(_PREFIX)


class HeldFolder:
    """A folder that nobody sweeps until it is let go or this process ends."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock: int | None = lock

    @classmethod
    def made(cls, name: str, root: Path = SHARED_MEMORY) -> Self:
        """Hold the folder of this name, which only this user can read; create it if it does not exist."""
        path = root / f"{_PREFIX}{name}"
        while True:
            path.mkdir(mode=0o700, exist_ok=True)
            if (held := cls.of(path)) is not None:
                return held

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Hold an existing folder; return None if it does not exist or was just swept."""
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
        """Stop holding the folder; doing so again changes nothing."""
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
    """Return whether the locked file is still the one in the folder."""
    try:
        return os.path.samestat(os.fstat(lock), (path / _LOCK).stat())
    except OSError:
        return False
