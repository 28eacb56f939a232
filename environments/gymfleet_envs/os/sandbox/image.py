"""The files that a session starts with, beside the programs that it sees read-only."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HOSTNAME: Final = "gymfleet"
_MTIME: Final = 1_700_000_000
_DIRECTORIES: Final = {
    "etc": 0o755, "etc/alternatives": 0o755, "etc/default": 0o755, "home": 0o755, "root": 0o700, "tmp": 0o1777,
    "opt": 0o755, "srv": 0o755, "mnt": 0o755, "media": 0o755, "run": 0o755, "boot": 0o755,
    "var": 0o755, "var/log": 0o755, "var/tmp": 0o1777, "var/lib": 0o755, "var/cache": 0o755, "var/mail": 0o2775,
    "var/spool": 0o755, "usr/local": 0o755, "usr/local/bin": 0o755, "usr/local/sbin": 0o755, "usr/local/lib": 0o755,
    "usr/local/share": 0o755, "usr/src": 0o755,
}  # fmt: skip
_SYSTEM_USERS: Final = (
    ("root", 0, "/root", "/bin/bash"),
    ("daemon", 1, "/usr/sbin", "/usr/sbin/nologin"),
    ("bin", 2, "/bin", "/usr/sbin/nologin"),
    ("sys", 3, "/dev", "/usr/sbin/nologin"),
    ("games", 5, "/usr/games", "/usr/sbin/nologin"),
    ("mail", 8, "/var/mail", "/usr/sbin/nologin"),
    ("www-data", 33, "/var/www", "/usr/sbin/nologin"),
    ("backup", 34, "/var/backups", "/usr/sbin/nologin"),
)
_SYSTEM_GROUPS: Final = (
    ("root", 0), ("daemon", 1), ("bin", 2), ("sys", 3), ("adm", 4), ("tty", 5), ("disk", 6), ("mail", 8), ("sudo", 27),
    ("www-data", 33), ("backup", 34), ("shadow", 42), ("staff", 50), ("games", 60), ("users", 100), ("nogroup", 65534),
)  # fmt: skip
_PROFILE: Final = "umask 022\n"
_LOGS: Final = {
    "alternatives.log": "update-alternatives 2023-11-14 22:13:20: link group awk updated to point to /usr/bin/gawk\n",
    "bootstrap.log": "Base system installed successfully.\n",
    "dpkg.log": "2023-11-14 22:13:20 startup archives unpack\n2023-11-14 22:13:20 status installed bash:amd64 5.2\n",
}
"""A machine that was installed once has some; tasks ask for their number and size."""
_COPIED: Final = (
    "bash.bashrc", "debian_version", "ld.so.conf", "login.defs", "lsb-release", "magic", "mime.types", "nsswitch.conf",
    "os-release", "pam.conf", "protocols", "rpc", "services", "shells",
)  # fmt: skip
"""Of the tree's own /etc: what programs need and nobody keeps a secret in."""
_COPIED_TREES: Final = ("alternatives", "pam.d", "security", "skel", "terminfo")
_MAX_FILE_BYTES: Final = 1 << 20


def image(rootfs: Path) -> bytes:
    """A tar archive of `/`, equal for equal trees."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, mode in _DIRECTORIES.items():
            archive.addfile(_entry(name, mode, tarfile.DIRTYPE))
        for name, mode, content in _files(rootfs / "etc"):
            entry = _entry(f"etc/{name}", mode, tarfile.REGTYPE)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        for name, text in _LOGS.items():
            entry = _entry(f"var/log/{name}", 0o644, tarfile.REGTYPE)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
        for name, target in (*_links(rootfs / "etc"), ("etc/localtime", "/usr/share/zoneinfo/Etc/UTC")):
            entry = _entry(name, 0o777, tarfile.SYMTYPE)
            entry.linkname = target
            archive.addfile(entry)
    return buffer.getvalue()


def _entry(name: str, mode: int, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.type = mode, _MTIME, kind
    return entry


def _files(etc: Path) -> Iterator[tuple[str, int, bytes]]:
    users = [*_SYSTEM_USERS, ("nobody", 65534, "/nonexistent", "/usr/sbin/nologin")]
    gids = dict(_SYSTEM_GROUPS)
    passwd = [f"{name}:x:{uid}:{gids.get(name, 65534)}:{name}:{home}:{shell}" for name, uid, home, shell in users]
    yield "passwd", 0o644, _lines(passwd)
    yield "shadow", 0o640, _lines([f"{name}:*:19675:0:99999:7:::" for name, *_ in users])
    yield "group", 0o644, _lines([f"{name}:x:{gid}:" for name, gid in _SYSTEM_GROUPS])
    yield "gshadow", 0o640, _lines([f"{name}:*::" for name, _ in _SYSTEM_GROUPS])
    yield "hostname", 0o644, _lines([HOSTNAME])
    yield "hosts", 0o644, _lines(["127.0.0.1 localhost", "::1 localhost", f"127.0.1.1 {HOSTNAME}"])
    yield "profile", 0o644, _PROFILE.encode()
    yield "default/useradd", 0o644, _lines(["SHELL=/bin/sh"])
    for name in _COPIED:
        if content := _content(etc / name):
            yield name, 0o644, content
    for tree in _COPIED_TREES:
        for path in sorted((etc / tree).rglob("*")):
            if not path.is_symlink() and (content := _content(path)):
                yield str(path.relative_to(etc)), 0o644, content


def _links(etc: Path) -> Iterator[tuple[str, str]]:
    for path in sorted((etc / "alternatives").glob("*")):
        if path.is_symlink():
            yield f"etc/alternatives/{path.name}", str(path.readlink())


def _content(path: Path) -> bytes:
    if not path.is_file() or path.stat().st_size > _MAX_FILE_BYTES or not path.stat().st_mode & 0o004:
        return b""
    return path.read_bytes()


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
