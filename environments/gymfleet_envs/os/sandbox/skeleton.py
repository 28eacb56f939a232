"""The files that every root has, whatever it was made from: directories, users, groups, a few logs."""

from collections.abc import Iterator
from typing import Final

HOSTNAME: Final = "gymfleet"
MTIME: Final = 1_700_000_000
DIRECTORIES: Final = {
    "etc": 0o755, "etc/alternatives": 0o755, "etc/default": 0o755, "home": 0o755, "root": 0o700, "tmp": 0o1777,
    "opt": 0o755, "srv": 0o755, "mnt": 0o755, "media": 0o755, "run": 0o755, "boot": 0o755,
    "var": 0o755, "var/log": 0o755, "var/tmp": 0o1777, "var/lib": 0o755, "var/cache": 0o755, "var/mail": 0o2775,
    "var/spool": 0o755, "usr/local": 0o755, "usr/local/bin": 0o755, "usr/local/sbin": 0o755, "usr/local/lib": 0o755,
    "usr/local/share": 0o755, "usr/src": 0o755, "proc": 0o555, "dev": 0o755,
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
_PAM: Final = {
    "auth": "auth required pam_unix.so nullok",
    "account": "account required pam_unix.so",
    "password": "password required pam_unix.so yescrypt",
    "session": "session required pam_unix.so",
    "session-noninteractive": "session required pam_unix.so",
}
_LOGS: Final = {
    "alternatives.log": "update-alternatives 2023-11-14 22:13:20: link group awk updated to point to /usr/bin/gawk\n",
    "bootstrap.log": "Base system installed successfully.\n",
    "dpkg.log": "2023-11-14 22:13:20 startup archives unpack\n2023-11-14 22:13:20 status installed bash:amd64 5.2\n",
}
"""Any installed machine has some logs; tasks ask for their number and size."""


def skeleton_files() -> Iterator[tuple[str, int, bytes]]:
    """Yield path, mode and content of each file."""
    users = [*_SYSTEM_USERS, ("nobody", 65534, "/nonexistent", "/usr/sbin/nologin")]
    gids = dict(_SYSTEM_GROUPS)
    passwd = [f"{name}:x:{uid}:{gids.get(name, 65534)}:{name}:{home}:{shell}" for name, uid, home, shell in users]
    yield "etc/passwd", 0o644, _lines(passwd)
    yield "etc/shadow", 0o640, _lines([f"{name}:*:19675:0:99999:7:::" for name, *_ in users])
    yield "etc/group", 0o644, _lines([f"{name}:x:{gid}:" for name, gid in _SYSTEM_GROUPS])
    yield "etc/gshadow", 0o640, _lines([f"{name}:*::" for name, _ in _SYSTEM_GROUPS])
    yield "etc/hostname", 0o644, _lines([HOSTNAME])
    yield "etc/hosts", 0o644, _lines(["127.0.0.1 localhost", "::1 localhost", f"127.0.1.1 {HOSTNAME}"])
    yield "etc/profile", 0o644, _PROFILE.encode()
    yield (
        "etc/nsswitch.conf",
        0o644,
        _lines([f"{name}: files" for name in ("passwd", "group", "shadow", "gshadow")] + ["hosts: files"]),
    )
    yield "etc/shells", 0o644, _lines(["/bin/sh", "/bin/bash", "/usr/bin/bash", "/bin/dash", "/usr/bin/dash"])
    for kind, line in _PAM.items():
        yield f"etc/pam.d/common-{kind}", 0o644, _lines([line])
    yield "etc/default/useradd", 0o644, _lines(["SHELL=/bin/sh"])
    for name, text in _LOGS.items():
        yield f"var/log/{name}", 0o644, text.encode()


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
