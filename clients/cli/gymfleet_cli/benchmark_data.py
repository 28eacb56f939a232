"""The place of imported benchmark files, and the values by which a command names them."""

import os
from collections.abc import Iterable
from pathlib import Path


def data_home() -> Path:
    """Return `GYMFLEET_DATA_DIR`, else `gymfleet/data` in the user's data directory (XDG)."""
    if given := os.environ.get("GYMFLEET_DATA_DIR"):
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "gymfleet" / "data"


def imported(env: str) -> Path:
    """Return the path of an environment's imported data. Raises `FileNotFoundError`, whose text says what to do."""
    path = data_home() / env
    if not path.is_dir():
        raise FileNotFoundError(f"no benchmark data of {env} was imported; run `gymfleet data import {env} DIRECTORY`")
    return path


def chosen(values: Iterable[str]) -> dict[str, Path]:
    """Read values of the form `ENV` (the imported data) or `ENV=DIRECTORY`. Raises `FileNotFoundError`."""
    found = {}
    for value in values:
        env, given, directory = value.partition("=")
        found[env] = Path(directory).resolve() if given else imported(env)
        if not found[env].is_dir():
            raise FileNotFoundError(f"{value}: there is no directory {directory!r}")
    return found
