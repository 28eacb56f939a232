"""A check's view of a container: the image, the preparation's files, and the agent's files that the rule allows."""

import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gymfleet_envs.os.sandbox.docker_changes import Changes, differences, in_order
from gymfleet_envs.os.sandbox.docker_layer import ADDED, CHANGED, REMOVED, Files
from gymfleet_envs.os.sandbox.docker_room import Room
from gymfleet_envs.os.sandbox.docker_unpack import Record, Unpacking
from gymfleet_envs.os.sandbox.rule import Entry, Kind, Show, kind_of, program_mode, show

_SEAL_TIMEOUT_S: Final = 8.0
_MOUNTED: Final = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
"""Docker mounts each container's own files at these paths, so they never differ from the image."""
_ACCOUNTS: Final = ("etc/group", "etc/passwd")
"""The daemon reads these files before it starts a program, and would block on a pipe."""


class Sealed:
    """The preparation's changes, which are trusted; files that programs read are copied out of the agent's reach."""

    def __init__(self, files: Files, container_id: str, disk_bytes: int) -> None:
        found = differences(files, container_id)
        self._made = found.keys()
        self._programs: set[str] = set()
        self.changes = Changes(files, container_id, disk_bytes, time.monotonic() + _SEAL_TIMEOUT_S)
        try:
            self.changes.read({path: kind for path, kind in found.items() if _kept(path, kind)})
        except BaseException:
            self.close()
            raise
        self.kept: Mapping[str, Entry] = self.changes.entries

    def close(self) -> None:
        """Discard the copies."""
        self.changes.close()

    def know_programs(self, programs: Mapping[str, list[str]]) -> None:
        """Set the image's programs: names by directory."""
        self._programs = {f"{folder}/{name}" for folder, names in programs.items() for name in names}

    def made(self, path: str) -> bool:
        """Whether the path differs from the image since the preparation."""
        return path in self._made

    def unchanged(self, path: str, entry: Entry) -> bool:
        """Whether the agent left the file as it was."""
        return self.kept.get(path) == entry

    def protects(self, path: str) -> bool:
        """Whether a check sees the image's or the preparation's file, whatever the agent did."""
        kind = kind_of(path)
        return kind is Kind.HIDDEN or (kind is Kind.PROGRAM and path in self._programs)

    def program_names(self) -> set[str]:
        """Names that the agent's own programs may not take."""
        made = {path for path in self._made if kind_of(path) is Kind.PROGRAM}
        return {path.rpartition("/")[2] for path in self._programs | made}


def put_view(files: Files, agent_id: str, sealed: Sealed, room: Room, *, disk_bytes: int, until: float) -> list[str]:
    """Put the agent's files that a check may see into a pristine container, and return the paths that it may not see.

    The agent's container is frozen. Raises `SandboxError`, `TooMuch` and Docker's errors.
    """
    found = differences(files, agent_id)
    wanted = _wanted(found, sealed)
    with Changes(files, agent_id, disk_bytes, until) as changes:
        changes.read(wanted)
        unpacking = Unpacking(room, until)
        try:
            sealed.know_programs(unpacking.programs)
            view = View(changes, sealed)
            failed = unpacking.put(view.records())
        finally:
            unpacking.close()
    folders = {path.rpartition("/")[0] for path in found}
    unread = {path for path in found if path not in wanted and path not in folders}
    return sorted({*view.hidden, *failed, *unread, *changes.missing} - {*_MOUNTED}, key=in_order)


class View:
    """Applies the rule to the agent's fetched files. `hidden` grows as `records` are read."""

    def __init__(self, changes: Changes, sealed: Sealed) -> None:
        self.hidden: list[str] = []
        self._changes = changes
        self._sealed = sealed
        self._put: set[str] = set()

    def records(self) -> Iterator[Record]:
        """Yield the operations to carry out, in order."""
        taken = self._sealed.program_names()
        agents: list[str] = []
        for path in sorted(self._changes.entries, key=in_order):
            entry = self._changes.entries[path]
            shown = show(path, entry, self._sealed, taken)
            if shown is Show.AGENTS and _can_be_put(path, entry):
                agents.append(path)
            elif shown is Show.BEFORE:
                yield from self._program(path, entry)
            elif shown in (Show.AGENTS, Show.HIDDEN):
                self.hidden.append(path)
        self._put.update(agents)
        yield from self._agents(agents)
        for path in sorted(self._sealed.kept.keys() - self._put, key=in_order):
            if _can_be_put(path, self._sealed.kept[path]):
                yield _record(path, self._sealed.kept[path], self._sealed.changes)

    def _agents(self, paths: list[str]) -> Iterator[Record]:
        links = {path: first for path in paths if (first := self._changes.links.get(path)) in self._put}
        for path in paths:
            if path not in links:
                yield _record(path, self._changes.entries[path], self._changes)
        for path, first in links.items():  # what they lead to is there by now
            yield {"do": "link", "path": path, "to": first}, ()

    def _program(self, path: str, entry: Entry) -> Iterator[Record]:
        """Yield the program as it was before the agent, with the special bits that it has now."""
        before, regular = self._sealed.kept.get(path), stat.S_ISREG(entry.mode)
        if regular and before is None:
            yield {"do": "mark", "path": path, "mode": stat.S_IMODE(entry.mode), "content": entry.content}, ()
        elif regular and before is not None and stat.S_ISREG(before.mode):
            mode = program_mode(before.mode, entry.mode)
            self._put.add(path)
            if mode != stat.S_IMODE(entry.mode) or before.content != entry.content:
                self.hidden.append(path)
            yield _record(path, Entry(stat.S_IFREG | mode, before.uid, before.gid, ""), self._sealed.changes)
        elif not stat.S_ISDIR(entry.mode):
            self.hidden.append(path)


def _kept(path: str, kind: int) -> bool:
    """Whether checks see the preparation's version of the path, which the agent cannot change."""
    return kind_of(path) is Kind.HIDDEN or (kind_of(path) is Kind.PROGRAM and kind != ADDED)


def _wanted(found: Mapping[str, int], sealed: Sealed) -> dict[str, int]:
    """Return the paths to look at: none that is always hidden, nor a system directory that is still a directory."""
    folders = {path.rpartition("/")[0] for path, kind in found.items() if kind != REMOVED}
    programs = (path for path in sealed.kept if kind_of(path) is Kind.PROGRAM)  # the agent may have undone the change
    wanted = dict.fromkeys((*_MOUNTED, *programs), CHANGED)
    for path, kind in found.items():
        of = kind_of(path)
        if path in sealed.kept or not (of is Kind.HIDDEN or (of is Kind.ANCESTOR and path in folders)):
            wanted[path] = kind
    return wanted


def _can_be_put(path: str, entry: Entry) -> bool:
    if path in _ACCOUNTS:
        return stat.S_ISREG(entry.mode)
    return entry.removed or not (stat.S_ISCHR(entry.mode) or stat.S_ISBLK(entry.mode))


def _record(path: str, entry: Entry, changes: Changes) -> Record:
    about: dict[str, Any] = {"path": path, "mode": stat.S_IMODE(entry.mode), "uid": entry.uid, "gid": entry.gid}
    if stat.S_ISREG(entry.mode):
        about |= {"do": "file", "size": changes.size(path), "time": changes.times[path]}
        return about, changes.content(path)
    if stat.S_ISDIR(entry.mode):
        return {**about, "do": "folder", "opaque": entry.content == "opaque"}, ()
    if stat.S_ISLNK(entry.mode):
        return {**about, "do": "symlink", "to": entry.content}, ()
    return {**about, "do": "remove" if entry.removed else "pipe"}, ()
