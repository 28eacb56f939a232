"""A digest of a container's changed files, read through the daemon."""

import contextlib
import hashlib
import tarfile
from collections.abc import Generator, Iterator
from typing import Any, Final, Protocol

from docker.errors import NotFound

_CHUNK: Final = 1 << 16
CHANGED: Final = 0
ADDED: Final = 1
REMOVED: Final = 2
_MAX_READ: Final = 1000
"""Up to this many changed files are read; if there are more, only names and kinds of change count."""


Archive = tuple[Generator[bytes, None, None], dict[str, Any]]


class Files(Protocol):
    """The methods of Docker's client that are used."""

    def diff(self, container: str) -> list[dict[str, Any]] | None:
        """Paths that differ from the image."""

    def get_archive(self, container: str, path: str, chunk_size: int) -> Archive:
        """A tar stream, and the file's properties."""


class ContainerLayer:
    """Reads the changes in one container. Files that did not change since the last look are not read again."""

    def __init__(self, files: Files, container_id: str) -> None:
        self._files = files
        self._id = container_id
        self._known: dict[tuple[str, int, int, str], bytes] = {}

    def digest(self) -> str:
        """A digest that is equal for equal changes; times do not count. Raises Docker's errors."""
        changes = sorted((str(change["Path"]), int(change["Kind"])) for change in self._files.diff(self._id) or ())
        known, self._known = self._known, {}
        total = hashlib.sha256()
        for path, kind in changes:
            total.update(f"{path}\0{kind}\0".encode(errors="surrogateescape"))
            if kind != REMOVED and len(changes) <= _MAX_READ:
                total.update(self._content(path, known))
        return total.hexdigest()

    def _content(self, path: str, known: dict[tuple[str, int, int, str], bytes]) -> bytes:
        try:
            stream, state = self._files.get_archive(self._id, path, _CHUNK)
        except NotFound:
            return b"gone"  # a process took it away meanwhile
        with contextlib.closing(stream):
            key = (path, int(state["size"]), int(state["mode"]), str(state["mtime"]))
            self._known[key] = known.get(key) or _hash(stream)
        return self._known[key]


class Reader:
    """Presents the chunks that Docker sends as a file to `tarfile`."""

    def __init__(self, stream: Iterator[bytes]) -> None:
        self._stream = stream
        self._left = b""

    def read(self, size: int) -> bytes:
        """Read `size` bytes; fewer at the end."""
        while len(self._left) < size and (chunk := next(self._stream, b"")):
            self._left += chunk
        taken, self._left = self._left[:size], self._left[size:]
        return taken


def _hash(stream: Iterator[bytes]) -> bytes:
    """Hash the first member: the other members of a directory are separate changes."""
    reader: Any = Reader(stream)
    with tarfile.open(fileobj=reader, mode="r|") as archive:
        member = archive.next()
        if member is None:
            return b"empty"
        total = hashlib.sha256(f"{member.type!r}{member.mode}:{member.uid}:{member.gid}:{member.linkname}".encode())
        content = archive.extractfile(member) if member.isreg() else None
        while content is not None and (chunk := content.read(_CHUNK)):
            total.update(chunk)
    return total.digest()
