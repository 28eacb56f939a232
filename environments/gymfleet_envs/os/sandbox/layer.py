"""A session's own layer: a digest of the session's state, and the part of the layer that a check may see.

The layer is the upper directory of an overlay: files that were made or changed, and marks for those removed.
"""

import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Final

from gymfleet_envs.os.sandbox.rule import NAME_FOLDERS, Entry, Kind, Show, ancestors, kind_of, program_mode, show

_CHUNK: Final = 1 << 20
_OPAQUE: Final = "user.overlay.opaque"


class Layer:
    """Reads an upper directory. Files that did not change since the last look are not read again."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._hashes: dict[tuple[str, int, int, int, int], str] = {}

    def entries(self, *, again: bool = False) -> dict[str, Entry]:
        """Return all files by path, in order; with `again`, read every content, whatever the files' times."""
        known, self._hashes = ({} if again else self._hashes), {}
        return {path: self._entry(path, state, known) for path, state in self._walk()}

    def digest(self) -> str:
        """A digest that is equal for layers with equal files."""
        total = hashlib.sha256()
        for path, entry in self.entries().items():
            fields = (path, f"{entry.mode:o}", str(entry.uid), str(entry.gid), entry.content)
            total.update(b"\0".join(os.fsencode(field) for field in fields) + b"\0\0")
        return total.hexdigest()

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        waiting = [""]
        while waiting:
            path = waiting.pop()
            full = os.path.join(self.folder, path)  # noqa: PTH118 - many small calls
            try:
                if path:
                    state = os.lstat(full)
                    yield path, state
                    if not stat.S_ISDIR(state.st_mode):
                        continue
                names = sorted(os.listdir(full), reverse=True)  # noqa: PTH208
            except OSError:
                continue  # a process took it away meanwhile, or its path is too long for anyone to use
            waiting += [f"{path}/{name}" if path else name for name in names]

    def _entry(self, path: str, state: os.stat_result, known: dict[tuple[str, int, int, int, int], str]) -> Entry:
        full = os.path.join(self.folder, path)  # noqa: PTH118
        content = ""
        if stat.S_ISREG(state.st_mode):
            key = (path, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            content = self._hashes[key] = known.get(key) or _hash(full)
        elif stat.S_ISLNK(state.st_mode):
            content = os.readlink(full)  # noqa: PTH115
        elif stat.S_ISDIR(state.st_mode):
            content = "opaque" if _is_opaque(full) else ""
        elif stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode):
            content = str(state.st_rdev)
        return Entry(state.st_mode, state.st_uid, state.st_gid, content)


class Prepared:
    """The preparation's files, which are trusted; those that programs read are copied out of the agent's reach."""

    def __init__(self, layer: Layer, root: str, folder: str) -> None:
        self._root = root
        self._folder = folder
        self._entries = layer.entries(again=True)
        self.kept = {path: entry for path, entry in self._entries.items() if self.protects(path)}
        for number, (path, entry) in enumerate(self.kept.items()):
            if stat.S_ISREG(entry.mode):
                full = os.path.join(layer.folder, path)  # noqa: PTH118
                _copy(full, self._place(number), stat.S_IMODE(entry.mode), os.lstat(full))
        self._numbers = {path: number for number, path in enumerate(self.kept)}

    def made(self, path: str) -> bool:
        """Whether the path is in the layer since the preparation."""
        return path in self._entries

    def unchanged(self, path: str, entry: Entry) -> bool:
        """Whether the agent left the file as it was."""
        return self._entries.get(path) == entry

    def protects(self, path: str) -> bool:
        """Whether a check sees the root's or the preparation's file, whatever the agent did."""
        kind = kind_of(path)
        return kind is Kind.HIDDEN or (kind is Kind.PROGRAM and os.path.lexists(os.path.join(self._root, path)))  # noqa: PTH118

    def program_names(self) -> set[str]:
        """Names that the agent's own programs may not take."""
        names = {name for folder in NAME_FOLDERS for name in _names(self._root, folder)}
        return names | {path.rpartition("/")[2] for path in self._entries if kind_of(path) is Kind.PROGRAM}

    def put_program(self, target: str, path: str, entry: Entry) -> bool:
        """Put the program as it was before the agent, with its current special bits; True if nothing else changed."""
        pristine = os.path.join(self._root, path)  # noqa: PTH118
        before = self.kept.get(path)
        source = self._place(self._numbers[path]) if before is not None and stat.S_ISREG(before.mode) else pristine
        state = os.lstat(source)
        if not stat.S_ISREG(entry.mode) or not stat.S_ISREG(state.st_mode):
            return False
        mode = program_mode(state.st_mode, entry.mode)
        if before is not None or mode != stat.S_IMODE(state.st_mode):
            _copy(source, os.path.join(target, path), mode, state)  # noqa: PTH118
        return mode == stat.S_IMODE(entry.mode) and _hash(source) == entry.content

    def put_kept(self, target: str) -> None:
        """Put all other protected files, as the preparation left them."""
        for path, entry in self.kept.items():
            ours = os.path.join(target, path)  # noqa: PTH118
            if os.path.lexists(ours):
                continue
            for ancestor in ancestors(path):
                if not os.path.lexists(os.path.join(target, ancestor)):  # noqa: PTH118
                    _put_plain_folder(self._root, target, ancestor)
            if stat.S_ISREG(entry.mode):
                kept = self._place(self._numbers[path])
                _copy(kept, ours, stat.S_IMODE(entry.mode), os.lstat(kept))
            elif stat.S_ISLNK(entry.mode):
                os.symlink(entry.content, ours)  # noqa: PTH211
                os.chown(ours, entry.uid, entry.gid, follow_symlinks=False)
            elif stat.S_ISDIR(entry.mode):
                _put_folder(ours, entry)
            elif entry.removed:
                os.mknod(ours, stat.S_IFCHR, 0)

    def _place(self, number: int) -> str:
        return os.path.join(self._folder, str(number))  # noqa: PTH118


def build_view(layer: Layer, prepared: Prepared, root: str, target: str) -> list[str]:
    """Move the files of a layer that a check may see to `target`, and return the paths that it may not see.

    Nothing may use the layer any more.
    """
    hidden: list[str] = []
    taken = prepared.program_names()
    for path, entry in layer.entries(again=True).items():
        shown, folder = show(path, entry, prepared, taken), stat.S_ISDIR(entry.mode)
        if shown is Show.AGENTS:
            _put(layer.folder, target, path, entry)
        elif shown is Show.PLAIN:
            _put_plain_folder(root, target, path)
        elif shown is Show.HIDDEN or (
            shown is Show.BEFORE and not prepared.put_program(target, path, entry) and not folder
        ):
            hidden.append(path)
    prepared.put_kept(target)
    return hidden


def _put(folder: str, target: str, path: str, entry: Entry) -> None:
    ours, theirs = os.path.join(target, path), os.path.join(folder, path)  # noqa: PTH118
    if stat.S_ISDIR(entry.mode):
        _put_folder(ours, entry)
    else:
        os.rename(theirs, ours)  # noqa: PTH104 - a link would show in the number of links


def _put_folder(ours: str, entry: Entry) -> None:
    os.mkdir(ours)  # noqa: PTH102
    os.chown(ours, entry.uid, entry.gid)
    os.chmod(ours, stat.S_IMODE(entry.mode))  # noqa: PTH101
    if entry.content == "opaque":
        os.setxattr(ours, _OPAQUE, b"y")


def _put_plain_folder(root: str, target: str, path: str) -> None:
    """Put the directory as it is in the root."""
    try:
        state = os.lstat(os.path.join(root, path))  # noqa: PTH118
    except FileNotFoundError:
        state = os.lstat(root)
    _put_folder(os.path.join(target, path), Entry(state.st_mode, state.st_uid, state.st_gid, ""))  # noqa: PTH118


def _copy(source: str, target: str, mode: int, state: os.stat_result) -> None:
    with open(source, "rb") as read, open(target, "wb") as write:  # noqa: PTH123
        while chunk := read.read(_CHUNK):
            write.write(chunk)
    os.chown(target, state.st_uid, state.st_gid)
    os.chmod(target, mode)  # noqa: PTH101
    os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns))


def _names(root: str, folder: str) -> list[str]:
    full = os.path.join(root, folder)  # noqa: PTH118
    try:
        return [] if os.path.islink(full) else os.listdir(full)  # noqa: PTH114, PTH208
    except FileNotFoundError:
        return []


def _hash(path: str) -> str:
    """Hash a file that may have become anything else by now, so nothing here may block."""
    total = hashlib.sha256()
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
            while chunk := file.read(_CHUNK):
                total.update(chunk)
    except OSError:
        return "gone"
    return total.hexdigest()


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError:
        return False
