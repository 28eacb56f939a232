"""Interpreters for environments whose packages clash with gymfleet's, and which name these packages in their file.

The file names them as any script does (PEP 723):

    # /// script
    # dependencies = ["numpy==1.26.4"]
    # ///

The interpreter is a virtual environment that has these packages and, behind them, everything that this one has: the
packages that the file names take precedence there, and nowhere else. It is made once for all files that name the same
packages.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import site
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gymfleet_env_server.catalogue import EnvironmentUnavailable

_BLOCK: Final = re.compile(r"(?m)^# /// script$\s(?P<content>(^#(| .*)$\s)+)^# ///$")  # PEP 723's own
_KNOWN_KEYS: Final = {"dependencies", "requires-python", "tool"}
_READY: Final = "gymfleet-packages.json"
_INSTALL_TIMEOUT_S: Final = 1800.0


def packages_of(reference: str) -> tuple[str, ...]:
    """Return the packages that an environment's file names; none if it is not a file, or names none.

    Raises `EnvironmentUnavailable` for a block that cannot be read.
    """
    path = Path(reference)
    if path.suffix != ".py" or not path.is_file():
        return ()
    blocks = list(_BLOCK.finditer(path.read_text(encoding="utf-8", errors="replace")))
    if not blocks:
        return ()
    if len(blocks) > 1:
        raise EnvironmentUnavailable(f"{reference} has {len(blocks)} blocks `# /// script`: write one")
    lines = blocks[0]["content"].splitlines()
    try:
        said = tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines))
    except tomllib.TOMLDecodeError as error:
        raise EnvironmentUnavailable(f"{reference}: its block `# /// script` is no TOML: {error}") from None
    if unknown := sorted(said.keys() - _KNOWN_KEYS):
        raise EnvironmentUnavailable(f"{reference}: its block `# /// script` has {unknown[0]}: PEP 723 knows none")
    return _checked(reference, said)


def _checked(reference: str, said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the packages of a block, which must be a list of requirements, without options of pip's."""
    try:
        wanted = SpecifierSet(str(said.get("requires-python", "")))
    except InvalidSpecifier as error:
        raise EnvironmentUnavailable(f"{reference}: requires-python: {error}") from None
    if (own := platform.python_version()) not in wanted:
        raise EnvironmentUnavailable(f"{reference} needs Python {wanted}, and gymfleet runs on {own}")
    packages = said.get("dependencies", [])
    if not isinstance(packages, list) or not all(isinstance(one, str) for one in packages):
        raise EnvironmentUnavailable(f'{reference}: dependencies must be a list as ["numpy==1.26.4"]')
    try:
        return tuple(sorted(str(Requirement(one)) for one in packages))
    except InvalidRequirement as error:
        raise EnvironmentUnavailable(f"{reference}: dependencies: {' '.join(str(error).split())}") from None


def differ(references: Sequence[str]) -> bool:
    """Return whether environments name different packages, so that no interpreter has all of them."""
    return len({packages_of(reference) for reference in references}) > 1


def change_interpreter(references: Sequence[str], module: str) -> None:
    """Continue this process in the interpreter of the environments' packages; return if it already runs in it.

    Args:
        references: the environments.
        module: the module that this process runs, with the arguments that it was given.

    Raises:
        EnvironmentUnavailable: they name different packages, or these cannot be installed.
    """
    if differ(references):
        alone = next(reference for reference in references if packages_of(reference))
        raise EnvironmentUnavailable(f"{alone} names packages of its own: serve it alone")
    packages = packages_of(references[0]) if references else ()
    if packages and _packages_here() != packages:
        python = str(prepared(packages) / "bin" / "python")
        os.execv(python, [python, "-m", module, *sys.argv[1:]])  # noqa: S606 - no shell is meant


def prepared(packages: tuple[str, ...]) -> Path:
    """Return the directory of an interpreter that has the packages; make the interpreter first if there is none.

    Raises `EnvironmentUnavailable` with pip's own reason.
    """
    base = json.dumps([packages, sys.version, _own_directories()])
    home = _home() / hashlib.sha256(base.encode()).hexdigest()[:16]
    if (home / _READY).is_file():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another server of the same packages may be at it
        if not (home / _READY).is_file():
            _make(home, packages)
    return home


def _make(home: Path, packages: tuple[str, ...]) -> None:
    sys.stderr.write(f"making an interpreter with {', '.join(packages)} in {home}\n")
    try:
        venv.create(home, clear=True, with_pip=True, symlinks=True)
    except (subprocess.CalledProcessError, OSError) as error:
        raise EnvironmentUnavailable(f"Python's venv cannot make {home} (Debian: python3-venv): {error}") from None
    python = str(home / "bin" / "python")
    (own,) = (home / "lib").glob("python*/site-packages")
    added = "; ".join(f"site.addsitedir({directory!r})" for directory in _own_directories())
    (own / "gymfleet-behind.pth").write_text(f"import site; {added}\n", encoding="utf-8")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *packages]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentUnavailable(f"pip did not install {', '.join(packages)} in {_INSTALL_TIMEOUT_S:g} s") from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")] or [
            f"code {done.returncode}"
        ]
        raise EnvironmentUnavailable(f"pip cannot install {', '.join(packages)}: {errors[-1].removeprefix('ERROR: ')}")
    (home / _READY).write_text(json.dumps(packages), encoding="utf-8")


def _packages_here() -> tuple[str, ...]:
    """Return the packages that this process's interpreter was made with, if it was made here."""
    mark = Path(sys.prefix) / _READY
    return tuple(json.loads(mark.read_text(encoding="utf-8"))) if mark.is_file() else ()


def _own_directories() -> list[str]:
    paths = sysconfig.get_paths()
    behind = [paths["purelib"], paths["platlib"], *(site.getsitepackages() if sys.prefix == sys.base_prefix else ())]
    return list(dict.fromkeys(behind))


def _home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gymfleet" / "interpreters"
