"""What each benchmark measures, as a hash: a figure whose sources have changed since says so in the docs."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_BASE: Final = ("contracts", "kit", "clients/python")
_ENVIRONMENTS: Final = (*_BASE, "environments", "services/env_server")
_SERVED: Final = (*_BASE, "services/env_server", "services/env_gateway")
_PLAYED: Final = (*_SERVED, "services/rollout")
_TRAINED: Final = (*_ENVIRONMENTS, "services", "recipes")
SOURCES: Final[Mapping[str, Sequence[str]]] = {
    "gateway": _SERVED,
    "agentgym": _SERVED,
    "openenv": _SERVED,
    "sessions": _SERVED,
    "isolation": _SERVED,
    "overload": _SERVED,
    "chaos": _SERVED,
    "soak": _SERVED,
    "envs": _ENVIRONMENTS,
    "data": _ENVIRONMENTS,
    "records": ("contracts", "kit/gymfleet_kit/data", "clients/cli/gymfleet_cli/commands/data_files.py"),
    "rollout": _PLAYED,
    "costs": (*_PLAYED, "services/reward", "environments/gymfleet_envs"),
    "rewards": ("contracts", "kit", "services/reward"),
    "trainer": ("contracts", "services/trainer"),
    "trees": ("contracts", "services/trainer"),
    "gpu": ("contracts", "services/trainer"),
    "gpu-compile": ("contracts", "services/trainer"),
    "gpu-checkpointing": ("contracts", "services/trainer"),
    "trl": ("contracts", "services/trainer"),
    "publish": ("contracts", "kit", "services/trainer", "services/rollout"),
}
"""Folders by benchmark; those that are not named here measure everything that a run needs."""


def digest(name: str, root: Path = ROOT) -> str:
    """Hash the paths and contents of all Python and recipe files that benchmark `name` measures."""
    return digest_of(SOURCES.get(name, _TRAINED), root)


def digest_of(places: Sequence[str], root: Path = ROOT) -> str:
    """The same for files, and for all Python and recipe files in folders."""
    files = {root / place for place in places if (root / place).is_file()} | {
        path for folder in places for pattern in ("*.py", "*.toml") for path in (root / folder).rglob(pattern)
    }
    found = hashlib.sha256()
    for path in sorted(files):
        found.update(f"{path.relative_to(root).as_posix()}\0".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]
