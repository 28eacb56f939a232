"""The socket of the fleet's Redis: next to its data, or elsewhere if that path is too long for a socket."""

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from gymfleet_cli.supervisor.errors import FleetError

_MAX_BYTES: Final = 107
"""The longest socket path on Linux."""


def socket_path(directory: Path) -> Path:
    """Return a short enough socket path for the Redis with its data in `directory`; it is always the same."""
    beside = directory / "redis.sock"
    if len(os.fsencode(beside)) <= _MAX_BYTES:
        return beside
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    elsewhere = _own_directory() / f"{name}.sock"
    if len(os.fsencode(elsewhere)) > _MAX_BYTES:
        raise FleetError(f"no socket fits below {tempfile.gettempdir()}; let TMPDIR name a directory with a short path")
    return elsewhere


def _own_directory() -> Path:
    """Return a directory that nobody else may enter. Raises `FleetError` if another user made it."""
    directory = Path(tempfile.gettempdir()) / f"gymfleet-{os.getuid()}"
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) != 0o700:
        raise FleetError(f"{directory} is not a directory of yours alone; remove it, or let TMPDIR name another place")
    return directory
