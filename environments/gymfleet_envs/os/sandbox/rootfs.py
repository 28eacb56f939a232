"""The prepared root: a tree of files that all sessions start from.

It is made once per machine and kept in a cache, or made once with a container image and shipped in it. It is a copy
that belongs to the user that sessions run as, because the kernel lets a session change its own view of a file only if
the file's owner exists inside. Nobody writes to it; a session's changes are in its own layer.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final

from gymfleet_envs.os.sandbox import packages
from gymfleet_envs.os.sandbox.base import SandboxError
from gymfleet_envs.os.sandbox.namespaces import NOBODY
from gymfleet_envs.os.sandbox.skeleton import DIRECTORIES, MTIME, skeleton_files

HOST: Final = Path("/")
IMAGE_ROOT: Final = Path("/opt/os-root")
"""The place of a root that a container image ships: on disk, shared by all of the image's containers."""
_MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories that may be links into /usr; every root gets the same of these links as its source."""
_HELD: Final[list[int]] = []
_PROGRAMS: Final = ("bash", "setpriv")
"""Programs that the sandbox's own programs need inside."""
_NOT_COPIED: Final = ("proc", "sys", "dev", "run", "tmp")


def prepared_root(source: Path | None, cache: Path | None) -> Path:
    """The root made from `source`, a whole tree, or from packages of the host; built if it does not exist yet.

    Without both arguments, it is the image's root, if the image ships one for this user. Raises `SandboxError` in one
    line.
    """
    if source is None and cache is None and _is_root_for(IMAGE_ROOT, os.geteuid()):
        return IMAGE_ROOT
    try:
        return _prepared(source or HOST, cache, os.geteuid())
    except OSError as error:
        raise SandboxError(f"no root for sessions: {error.strerror or error} ({error.filename})") from None


def make_image_root() -> None:
    """Make `IMAGE_ROOT`, an empty directory, from the host's packages, as the user whose sessions will use it.

    Raises OSError, and `SandboxError` on a host without dpkg.
    """
    _Builder(IMAGE_ROOT).build(_HostPlan(HOST))


def missing_programs(tree: Path) -> list[str]:
    """Return the required programs that are missing from a tree's /usr/bin and /bin."""
    return [name for name in _PROGRAMS if not any((tree / place / name).exists() for place in ("usr/bin", "bin"))]


def _is_root_for(folder: Path, euid: int) -> bool:
    """Whether sessions of this user's server can use the root: the kernel copies up only files that they own."""
    owner = NOBODY if euid == 0 else euid
    return folder.is_dir() and folder.stat().st_uid == owner and not missing_programs(folder)


@lru_cache(maxsize=8)
def _prepared(source: Path, cache: Path | None, euid: int) -> Path:
    plan = _HostPlan(source) if source == HOST else _TreePlan(source)
    ours = (DIRECTORIES, list(skeleton_files()), packages.PACKAGES)
    source_code = Path(__file__).read_text(encoding="utf-8")
    seed = "\0".join((source_code, str(source.resolve()), str(euid), repr(ours), plan.identity))
    name = f"root-{hashlib.sha256(seed.encode()).hexdigest()[:20]}"
    folder = _private_folder(cache)
    root = folder / name
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.is_dir():
            for left in (*folder.glob("building-*"), *(path for path in folder.glob("root-*") if _unused(path))):
                shutil.rmtree(left)
            building = Path(tempfile.mkdtemp(prefix="building-", dir=folder))
            _Builder(building).build(plan)
            building.rename(root)
        _HELD.append(_locked(root, fcntl.LOCK_SH))
    return root


def _locked(root: Path, how: int) -> int:
    """Lock the root; while the returned descriptor is open, the root counts as in use."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        os.close(handle)
        raise
    return handle


def _unused(root: Path) -> bool:
    """Whether no running server uses the root, which is of other packages or another version."""
    try:
        os.close(_locked(root, fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _private_folder(cache: Path | None) -> Path:
    """Return a directory of this user that nobody else can write to."""
    temporary = Path(tempfile.gettempdir()) / f"gymfleet-os-{os.geteuid()}"
    caches = os.environ.get("XDG_CACHE_HOME") or (f"{os.environ['HOME']}/.cache" if os.environ.get("HOME") else "")
    places = [cache] if cache is not None else [*([Path(caches, "gymfleet/os-roots")] if caches else []), temporary]
    for place in places[:-1]:
        with contextlib.suppress(OSError):
            return _made(place)
    return _made(places[-1])


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise PermissionError(1, "it is another user's, or others can write to it", str(folder))
    if not os.access(folder, os.W_OK):
        raise PermissionError(13, "it cannot be written to", str(folder))
    return folder


class _HostPlan:
    """Files of the listed packages of a Debian host."""

    def __init__(self, host: Path) -> None:
        self.source = host
        try:
            self._installed = packages.installed(host)
        except FileNotFoundError:
            raise SandboxError("this host has no dpkg to make a root from; set rootfs to a tree of files") from None
        self._names = packages.closure(self._installed)
        self.identity = "\0".join(f"{name}={self._installed[name].get('Version')}" for name in self._names)

    def paths(self) -> Iterator[str]:
        """Yield absolute paths, parents before their contents."""
        known: set[str] = set()
        for name in self._names:
            known.update(packages.files(self.source, name, self._installed[name].get("Architecture", "")))
        for path in sorted(known):
            if path.endswith(".py"):
                folder, _, file = path.rpartition("/")
                for compiled in Path(folder, "__pycache__").glob(f"{file[:-3]}.*.pyc"):
                    known.add(str(compiled))
        for link, target in packages.alternatives(self.source):
            if str(Path(target).resolve()) in known or str(Path(target).resolve()).removeprefix("/usr") in known:
                known.update((link, target))
        yield from sorted(known)

    def package_state(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files from which dpkg inside knows the packages that are there."""
        yield (
            "var/lib/dpkg/status",
            "\n\n".join(self._installed[name][""].strip() for name in self._names).encode() + b"\n",
        )
        for name in self._names:
            lines = "".join(
                f"{path}\n" for path in packages.files(self.source, name, self._installed[name].get("Architecture", ""))
            )
            yield f"var/lib/dpkg/info/{name}.list", lines.encode()


class _TreePlan:
    """A whole tree, such as an unpacked container image."""

    def __init__(self, tree: Path) -> None:
        self.source = tree
        listing = hashlib.sha256()
        for path in self.paths():
            state = (tree / path[1:]).lstat()
            listing.update(f"{path}\0{state.st_mode}\0{state.st_size}\0{state.st_mtime_ns}\n".encode(errors="replace"))
        self.identity = listing.hexdigest()

    def paths(self) -> Iterator[str]:
        """Yield absolute paths, parents before their contents."""
        for folder, names, files in os.walk(self.source):
            names.sort()
            inside = folder[len(str(self.source)) :].strip("/")
            if not inside:
                names[:] = [name for name in names if name not in _NOT_COPIED]
            yield from (f"/{inside}/{name}".replace("//", "/") for name in sorted((*names, *files)))

    def package_state(self) -> Iterator[tuple[str, bytes]]:
        """Yield nothing: the tree has its own."""
        yield from ()


class _Builder:
    """Copies into an empty directory. All files belong to the inside's root user, which every session has."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[Path, os.stat_result | None] = {}

    def build(self, plan: "_HostPlan | _TreePlan") -> None:
        """Copy the files, put the skeleton over them, and change the owner of all. Raises OSError."""
        root = self._root
        for name in _MERGED:
            if (plan.source / name).is_symlink():
                (root / name).symlink_to(f"usr/{name}")
        for name, mode in DIRECTORIES.items():
            self._folder(root / name)
            (root / name).chmod(mode)
        for path in plan.paths():
            self._copy(plan.source / path[1:], root / self._merged(path[1:]))
        for name, content in plan.package_state():
            self._write(root / name, content, 0o644)
        for name, mode, content in skeleton_files():
            self._write(root / name, content, mode)
        for name in ("updates", "parts", "triggers"):
            self._folder(root / "var/lib/dpkg" / name)
        if not (root / "etc/localtime").is_symlink():
            (root / "etc/localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
        self._drop_dead_links(root / "etc/alternatives")
        self._finish()

    def _merged(self, path: str) -> str:
        """Resolve a path's directory: if /bin is a link to /usr/bin, a package's /bin/sh is /usr/bin/sh."""
        return f"usr/{path}" if "/" in path and (self._root / path.partition("/")[0]).is_symlink() else path

    def _copy(self, source: Path, target: Path) -> None:
        try:
            state = source.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return  # of the package, and taken away by whoever made the host
        if stat.S_ISDIR(state.st_mode):
            if not target.is_symlink() and str(target.relative_to(self._root)) != "sys":
                self._folder(target, state)
            return
        self._folder(target.parent)
        if os.path.lexists(target):
            return
        if stat.S_ISLNK(state.st_mode):
            target.symlink_to(source.readlink())
        elif stat.S_ISREG(state.st_mode) and os.access(source, os.R_OK) and self._readable(state, target):
            shutil.copyfile(source, target)
            os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns))
            self._give(target)
            target.chmod(stat.S_IMODE(state.st_mode))

    def _readable(self, state: os.stat_result, target: Path) -> bool:
        """Whether to copy a file: of /etc, only if every user of the host may read it, as it then holds no secret."""
        return bool(state.st_mode & 0o004) or target.relative_to(self._root).parts[0] != "etc"

    def _write(self, target: Path, content: bytes, mode: int) -> None:
        self._folder(target.parent)
        target.unlink(missing_ok=True)
        target.write_bytes(content)
        self._give(target)
        target.chmod(mode)
        os.utime(target, (MTIME, MTIME))

    def _folder(self, target: Path, state: os.stat_result | None = None) -> None:
        if state is not None or target not in self._folders:
            self._folders.setdefault(target, None)
            if not target.is_dir():
                target.mkdir(parents=True)
            if state is not None and str(target.relative_to(self._root)) not in DIRECTORIES:
                self._folders[target] = state

    def _drop_dead_links(self, folder: Path) -> None:
        for link in folder.iterdir():
            target = str(link.readlink()) if link.is_symlink() else ""
            if target.startswith("/") and not os.path.lexists(self._root / target[1:]):
                link.unlink()

    def _finish(self) -> None:
        """Finish directories last, deepest first, because putting files into them changes their times."""
        for path in sorted((path for path in self._root.rglob("*")), key=lambda path: -len(path.parts)):
            if path.is_symlink():
                self._give(path)
            elif path.is_dir():
                state = self._folders.get(path)
                self._give(path)
                if state is not None:
                    path.chmod(stat.S_IMODE(state.st_mode))
                os.utime(path, (MTIME, MTIME))
            if path.is_symlink():
                os.utime(path, (MTIME, MTIME), follow_symlinks=False)
        self._give(self._root)
        self._root.chmod(0o755)
        os.utime(self._root, (MTIME, MTIME))

    def _give(self, path: Path) -> None:
        if os.geteuid() == 0:
            mode = stat.S_IMODE(path.lstat().st_mode)
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
            if not path.is_symlink():
                path.chmod(mode)  # the kernel takes set-user-ID bits away with the owner
