"""The files of a Debian host that make up a root: those of a fixed list of packages and of their dependencies."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

Stanza = Mapping[str, str]

PACKAGES: Final = (
    "base-files", "base-passwd", "bash", "bc", "bsdextrautils", "bsdutils", "bzip2", "coreutils", "cpio", "cron",
    "curl", "dash", "dc", "debianutils", "diffutils", "dpkg", "e2fsprogs", "file", "findutils", "gawk", "git", "grep",
    "gzip", "hostname", "iproute2", "less", "libc-bin", "login", "lsof", "make", "mawk", "mount", "nano",
    "ncurses-base", "ncurses-bin", "passwd", "perl-base", "procps", "psmisc", "python3", "python3-minimal", "sed",
    "sudo", "tar", "time", "tree", "tzdata", "unzip", "util-linux", "util-linux-extra", "vim-tiny", "wget", "xxd",
    "xz-utils", "zip",
)  # fmt: skip
"""The same packages as in the Docker backend's image. A package that a host lacks is missing from its root too."""
_LEFT_OUT: Final = tuple(
    f"/usr/share/{name}/" for name in ("doc", "man", "locale", "info", "lintian", "bash-completion")
)
DPKG_STATUS: Final = Path("/var/lib/dpkg/status")


def installed(host: Path) -> dict[str, Stanza]:
    """Return dpkg's fields of each installed package. Raises FileNotFoundError on a host without dpkg."""
    found: dict[str, Stanza] = {}
    for block in (host / DPKG_STATUS.relative_to("/")).read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z-]+): ?(.*)$", block, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = {**fields, "": block}
    return found


def closure(packages: Mapping[str, Stanza]) -> list[str]:
    """Return those of `PACKAGES` that are installed, with all their dependencies, sorted."""
    provided = {
        name: package
        for package, fields in sorted(packages.items())
        for name in re.findall(r"(?:^|, )([a-z0-9.+-]+)", fields.get("Provides", ""))
    }
    found: set[str] = set()
    waiting = [name for name in PACKAGES if name in packages]
    while waiting:
        if (package := waiting.pop()) in found:
            continue
        found.add(package)
        for field in ("Pre-Depends", "Depends"):
            for alternatives in packages[package].get(field, "").split(","):
                names = re.findall(r"(?:^|\|)\s*([a-z0-9.+-]+)", alternatives)
                known = (candidate for name in names for candidate in (name, provided.get(name, "")))
                waiting += [candidate for candidate in known if candidate in packages][:1]
    return sorted(found)


def files(host: Path, package: str, architecture: str) -> Iterator[str]:
    """Yield absolute paths of the package's files and directories, without documentation and translations."""
    information = host / "var/lib/dpkg/info"
    for name in (f"{package}.list", f"{package}:{architecture}.list"):
        if (listing := information / name).is_file():
            for path in listing.read_text(encoding="utf-8").splitlines():
                if path != "/." and not path.startswith(_LEFT_OUT):
                    yield path


def alternatives(host: Path) -> Iterator[tuple[str, str]]:
    """Yield links that update-alternatives manages, such as /usr/bin/awk: the link's path and its target under /etc."""
    for folder in ("usr/bin", "usr/sbin"):
        for path in sorted((host / folder).iterdir()):
            if path.is_symlink() and (target := str(path.readlink())).startswith("/etc/alternatives/"):
                yield f"/{folder}/{path.name}", target
