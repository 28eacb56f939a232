"""Which of an agent's changes a check may see: one rule for every backend, by path and by the state before."""

import re
import stat
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

PROGRAM_FOLDERS: Final = ("usr/bin", "usr/sbin", "usr/games", "usr/local/bin", "usr/local/sbin", "usr/local/games")
NAME_FOLDERS: Final = (*PROGRAM_FOLDERS, "bin", "sbin")
"""Directories of programs whose names no other program may take."""
SPECIAL_BITS: Final = 0o7000
MAX_HIDDEN: Final = 20
"""At most this many of the paths that a check does not see are reported."""
_PROGRAM_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]*(?:\.sh)?")
_ANCESTORS: Final = frozenset({"", "etc", "usr", "usr/local", *PROGRAM_FOLDERS})
_OURS: Final = re.compile(
    r"(?:proc|dev|sys|bin|sbin|lib[^/]*|pyvenv\.cfg)(?:/.*)?"
    r"|usr/(?:lib[^/]*|share|include|pyvenv\.cfg)(?:/.*)?"
    r"|usr/local/(?:lib[^/]*|share|include|etc|pyvenv\.cfg)(?:/.*)?"
    r"|(?:usr|usr/local)/(?:bin|sbin|games)/.*/.*"
    r"|etc/(?:ld[.-]|alternatives|apparmor|apt|bash|csh|curlrc|default|dpkg|environment|gai\.conf|git|gnutls|gss|host\.conf"
    r"|inputrc|java|ksh|krb5|less|libaudit|locale|login\.defs|magic|mime|netconfig|nscd|nsswitch|pam|perl|profile|python"
    r"|screenrc|security|selinux|ssl|sudo\.|sudo_|suid-debug|syslesskey|termcap|terminal-colors|terminfo|vim|wgetrc"
    r"|xattr|zsh)[^/]*(?:/.*)?"
)
"""Files that programs read on their own: loaders, libraries, modules, their settings. Checks see the root's own."""


class Kind(Enum):
    """How a check sees a change made after the preparation."""

    SEEN = "seen"
    ANCESTOR = "ancestor"
    """A system directory: new files in it may be seen; the directory itself stays as it was."""
    PROGRAM = "program"
    """Seen if it is new: a program of the root stays as it was."""
    HIDDEN = "hidden"


def kind_of(path: str) -> Kind:
    """Return the kind of a path relative to the root."""
    if path in _ANCESTORS:
        return Kind.ANCESTOR
    if _OURS.fullmatch(path):
        return Kind.HIDDEN
    return Kind.PROGRAM if path.rpartition("/")[0] in PROGRAM_FOLDERS else Kind.SEEN


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a layer. `content` is a hash, a link's target or a device's number; times and inodes do not count."""

    mode: int
    uid: int
    gid: int
    content: str

    @property
    def removed(self) -> bool:
        """Whether it marks a removed file."""
        return stat.S_ISCHR(self.mode) and self.content == "0"


class Show(Enum):
    """What a check sees at one path."""

    AGENTS = "agents"
    """What the agent left there."""
    PLAIN = "plain"
    """A directory as it is in the root."""
    BEFORE = "before"
    """A program as it was before the agent, with the special bits that it has now."""
    UNCHANGED = "unchanged"
    HIDDEN = "hidden"


class Before(Protocol):
    """The state before the agent: the root, with the changes of the task's preparation."""

    def made(self, path: str) -> bool:
        """Whether the preparation made or changed the path."""

    def unchanged(self, path: str, entry: Entry) -> bool:
        """Whether the agent left the file as the preparation did."""

    def protects(self, path: str) -> bool:
        """Whether a check sees the root's or the preparation's file, whatever the agent did."""


def show(path: str, entry: Entry, before: Before, taken: AbstractSet[str]) -> Show:
    """Decide for one file of the agent's layer; `taken` holds names that the agent's own programs may not take."""
    kind, folder, protected = kind_of(path), stat.S_ISDIR(entry.mode), before.protects(path)
    if kind is Kind.PROGRAM and not protected and (before.made(path) or _new_program(path, entry, taken)):
        kind = Kind.SEEN
    if kind is Kind.SEEN and not stat.S_ISSOCK(entry.mode):
        return Show.AGENTS
    if kind is Kind.ANCESTOR and folder:
        return Show.PLAIN
    if before.unchanged(path, entry):
        return Show.UNCHANGED
    if kind is Kind.PROGRAM and protected:
        return Show.BEFORE
    return Show.UNCHANGED if folder else Show.HIDDEN


def program_mode(mode: int, now: int) -> int:
    """Permissions of a program that had `mode` before the agent and has `now` after it."""
    return (stat.S_IMODE(mode) & ~SPECIAL_BITS) | (now & SPECIAL_BITS)


def ancestors(path: str) -> list[str]:
    """The directories that contain the path, from the outermost."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _new_program(path: str, entry: Entry, taken: AbstractSet[str]) -> bool:
    name = path.rpartition("/")[2]
    runs = stat.S_ISLNK(entry.mode) or (stat.S_ISREG(entry.mode) and bool(entry.mode & 0o111)) or entry.removed
    return runs and name not in taken and bool(_PROGRAM_NAME.fullmatch(name))
