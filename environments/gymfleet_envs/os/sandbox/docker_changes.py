"""The files in which a container differs from its image, fetched from the daemon with few requests.

The daemon sends a file system that an agent wrote, so names that lead elsewhere are left out, and sizes and numbers of
files are bounded.
"""

import contextlib
import hashlib
import os
import stat
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, Final, Self

from docker.errors import NotFound

from gymfleet_envs.os.sandbox.base import SandboxError
from gymfleet_envs.os.sandbox.docker_layer import ADDED, CHANGED, REMOVED, Files, Reader
from gymfleet_envs.os.sandbox.rule import Entry, ancestors

_CHUNK: Final = 1 << 20
_MEMORY_BYTES: Final = 1 << 20
_BYTES_PER_FILE: Final = 4096
_CROWD: Final = 3
"""A directory with at least this many differences is fetched as a whole: a request costs as much as some megabytes."""
_FOLDER_BYTES: Final = 128 << 20
_NEVER_WHOLE: Final = ("", "usr")
_MOUNTED: Final = ("dev", "proc", "sys")
_TYPES: Final = {
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
}


class TooMuch(SandboxError):
    """The files are larger or more numerous than the sandbox may hold."""


class _FolderTooLargeError(Exception):
    """A directory holds too much that did not change to be fetched as a whole."""


def differences(files: Files, container_id: str) -> dict[str, int]:
    """Return paths relative to the root, parents first, and how each differs from the image."""
    found = {str(change["Path"]).strip("/"): int(change["Kind"]) for change in files.diff(container_id) or ()}
    kept = (path for path in found if path and path.partition("/")[0] not in _MOUNTED)
    return {path: found[path] for path in sorted(kept, key=in_order)}


def in_order(path: str) -> list[str]:
    """Sort key that puts parents before their contents."""
    return path.split("/")


class Changes:
    """Files of a container by path, with their contents in a temporary file.

    Args:
        disk_bytes: limit of the contents' total size.
        until: deadline on the monotonic clock, after which reading raises `SandboxError`.
    """

    def __init__(self, files: Files, container_id: str, disk_bytes: int, until: float) -> None:
        self.entries: dict[str, Entry] = {}
        self.times: dict[str, int] = {}
        self.links: dict[str, str] = {}
        """Hard links, each with the path under which the same file was found first."""
        self.missing: list[str] = []
        """Paths that differ but were not sent: sockets, names that are not UTF-8."""
        self._files = files
        self._id = container_id
        self._disk_bytes = disk_bytes
        self._until = until
        self._alone: list[str] = []
        self._places: dict[str, tuple[int, int]] = {}
        self._store: IO[bytes] = tempfile.SpooledTemporaryFile(_MEMORY_BYTES)  # noqa: SIM115 - closed by `close`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Discard the contents."""
        self._store.close()

    def size(self, path: str) -> int:
        """The size of a regular file, in bytes."""
        return self._places[path][1]

    def content(self, path: str) -> Iterator[bytes]:
        """Yield the content of a regular file."""
        at, left = self._places[path]
        while left:
            self._store.seek(at)
            chunk = self._store.read(min(left, _CHUNK))
            at, left = at + len(chunk), left - len(chunk)
            yield chunk

    def read(self, kinds: Mapping[str, int]) -> None:
        """Fetch the files at these paths. Raises `TooMuch`, `SandboxError` and Docker's errors."""
        units = _units(kinds)
        crowds = Counter(path.rpartition("/")[0] for path in units) + Counter(units)
        whole: set[str] = set()
        for folder in sorted((path for path, count in crowds.items() if count >= _CROWD), key=in_order):
            if folder not in _NEVER_WHOLE and not whole.intersection(ancestors(folder)):
                with contextlib.suppress(_FolderTooLargeError):
                    self._fetch(folder, kinds, lambda place: _told(place) in kinds, budget=_FOLDER_BYTES)
                    whole.add(folder)
        for path in units:
            if not whole.intersection((path, *ancestors(path))):
                if kinds[path] == CHANGED:
                    self._fetch(path, kinds, lambda _: True, head=True)
                else:
                    self._fetch(path, kinds, lambda _: True)
        for path in self._alone:
            self._fetch(path, kinds, lambda _: True, head=True)
        told = {_told(path) for path in self.entries}
        for path, kind in kinds.items():
            if kind == REMOVED and path not in told:
                self.entries[path] = Entry(stat.S_IFCHR, 0, 0, "0")
            elif path not in told:
                self.missing.append(path)

    def _fetch(
        self,
        path: str,
        kinds: Mapping[str, int],
        wanted: Callable[[str], bool],
        *,
        head: bool = False,
        budget: int | None = None,
    ) -> None:
        """Request the file at this path and, without `head`, those below it; leave out a missing path."""
        try:
            stream, _ = self._files.get_archive(self._id, f"/{path}", _CHUNK)
        except NotFound:
            return
        reader: Any = Reader(self._bounded(stream, budget))
        try:
            with contextlib.closing(stream), tarfile.open(fileobj=reader, mode="r|") as archive:
                for member in archive:
                    place = place_of(path, member.name)
                    if place is not None and wanted(place):
                        self._add(place, member, archive, path, opaque=kinds.get(_told(place)) == REMOVED)
                    if head:
                        return
        except tarfile.TarError as error:
            raise SandboxError(f"the daemon sent no archive of /{path}: {error}") from None

    def _bounded(self, stream: Iterator[bytes], budget: int | None) -> Iterator[bytes]:
        total = 0
        for chunk in stream:
            total += len(chunk)
            if budget is not None and total > budget:
                raise _FolderTooLargeError
            if time.monotonic() > self._until:
                raise SandboxError("the files of the sandbox could not be read in time")
            yield chunk

    def _add(self, place: str, member: tarfile.TarInfo, archive: tarfile.TarFile, asked: str, *, opaque: bool) -> None:
        content, mode = "", member.mode & 0o7777
        if member.islnk():
            first = place_of(asked, member.linkname)
            if first is None or first not in self.entries:
                self._alone.append(place)  # of a file that itself is as it was
                return
            self.entries[place], self.times[place] = self.entries[first], self.times[first]
            self.links[place] = first
            self._places[place] = self._places[first]
            return
        if member.isreg():
            mode |= stat.S_IFREG
            content = self._keep(place, archive.extractfile(member))
        elif member.type in _TYPES:
            mode |= _TYPES[member.type]
            if member.issym():
                content = member.linkname
            elif member.isdir():
                content = "opaque" if opaque else ""
            elif not member.isfifo():
                content = str(os.makedev(member.devmajor, member.devminor))
        else:
            return
        self.entries[place], self.times[place] = Entry(mode, member.uid, member.gid, content), int(member.mtime)
        if len(self.entries) * _BYTES_PER_FILE > self._disk_bytes:
            raise TooMuch("the sandbox holds too many files")

    def _keep(self, place: str, file: IO[bytes] | None) -> str:
        total, start = hashlib.sha256(), self._store.seek(0, os.SEEK_END)
        at = start
        while file is not None and (chunk := file.read(_CHUNK)):
            at += len(chunk)
            if at > self._disk_bytes:
                raise TooMuch("the files of the sandbox are too large")
            self._store.write(chunk)
            total.update(chunk)
        self._places[place] = (start, at - start)
        return total.hexdigest()


def place_of(asked: str, name: str) -> str | None:
    """The path of a member in the archive of path `asked`; None for a name that leads out of `asked`."""
    parent, _, base = asked.rpartition("/")
    parts = name.rstrip("/").split("/")
    if parts[0] != base or any(part in ("", ".", "..") for part in parts):
        return None
    return "/".join((*parent.split("/"), *parts)) if parent else "/".join(parts)


def _units(kinds: Mapping[str, int]) -> list[str]:
    """Return the paths that need a request each: of new or replaced files, only the outermost directory."""
    units: list[str] = []
    within = ""
    for path in sorted(kinds, key=in_order):
        if within and path.startswith(within):
            continue
        units.append(path)
        within = f"{path}/" if kinds[path] in (ADDED, REMOVED) else ""
    return units


def _told(path: str) -> str:
    """Return the path as written by the daemon, which supports only names in UTF-8."""
    return path.encode(errors="surrogateescape").decode(errors="replace")
