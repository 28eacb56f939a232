"""A hash of the sources that each benchmark measures; the docs mark figures whose sources have changed since."""

import ast
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
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
"""Folders by benchmark; benchmarks not listed here measure everything that a run needs."""


def digest(name: str, root: Path = ROOT) -> str:
    """Hash the paths and contents of all Python and recipe files that benchmark `name` measures.

    Docstrings and comments do not count: no figure depends on them.
    """
    return digest_of(SOURCES.get(name, _TRAINED), root)


def digest_of(places: Sequence[str], root: Path = ROOT) -> str:
    """Hash the given files, and all Python and recipe files in the given folders, in the same way."""
    files = {root / place for place in places if (root / place).is_file()} | {
        path for folder in places for pattern in ("*.py", "*.toml") for path in (root / folder).rglob(pattern)
    }
    found = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        measured = _code_of(content) if path.suffix == ".py" else content
        found.update(f"{path.relative_to(root).as_posix()}\0".encode())
        found.update(hashlib.sha256(measured).digest())
    return found.hexdigest()[:16]


@cache
def _code_of(source: bytes) -> bytes:
    """Return Python source without its docstrings, blank lines and lines of comments.

    The result is source text, since `ast.dump` differs between versions of Python.
    """
    lines = source.decode().split("\n")
    docstrings: set[int] = set()
    strings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings |= _own_lines(node, lines)
        elif isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno:
            strings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    kept = [
        line
        for number, line in enumerate(lines, 1)
        if number in strings - docstrings
        or (number not in docstrings and (text := line.strip()) and not text.startswith("#"))
    ]
    return "\n".join(kept).encode()


def _own_lines(node: ast.Expr, lines: Sequence[str]) -> set[int]:
    """Return the line numbers of a string that stands alone; none if it shares a line with other code."""
    first, last = node.lineno, node.end_lineno or node.lineno
    before = lines[first - 1].encode()[: node.col_offset]
    after = lines[last - 1].encode()[node.end_col_offset :]
    return set() if before.strip() or after.strip() else set(range(first, last + 1))
