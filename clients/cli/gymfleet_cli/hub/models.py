"""Checkpoints on the hub: config, tokenizer and safetensors; nothing that would run when loaded."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gymfleet_cli.commands.evaluate import last_model
from gymfleet_cli.console import CliError, UsageProblem

WEIGHTS: Final = ".safetensors"
_NAMES: Final = frozenset({"merges.txt", "vocab.txt", "chat_template.jinja", "tokenizer.model"})
_SUFFIXES: Final = (WEIGHTS, ".json")
_LENGTH: Final = struct.Struct("<Q")
_MAX_HEADER_BYTES: Final = 100_000_000
"""The limit of the safetensors library."""
_MAX_JSON_BYTES: Final = 1 << 28


def is_wanted(path: str) -> bool:
    """Return whether an engine or a trainer loads this file of a model's directory."""
    return "/" not in path and (path in _NAMES or path.endswith(_SUFFIXES))


def model_files(target: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of a run's last model, a checkpoint or a model directory, and those left out.

    Raises `UsageProblem` if there is no model, or none with safetensors.
    """
    if not target.is_dir():
        raise UsageProblem(f"there is no run, checkpoint or model directory at {target}")
    found = target if (target / "config.json").is_file() else last_model(target) or target
    directory = found if (found / "config.json").is_file() else found / "model"
    if not (directory / "config.json").is_file():
        raise UsageProblem(f"{target} is neither a run with a model, nor a checkpoint, nor a model directory")
    there = sorted(path for path in directory.iterdir() if path.is_file() and path.name != "README.md")
    wanted = [path for path in there if is_wanted(path.name)]
    if not any(path.suffix == WEIGHTS for path in wanted):
        raise UsageProblem(f"{directory} has no {WEIGHTS} file")
    return wanted, [path for path in there if path not in wanted]


def card(name: str, files: Sequence[Path]) -> str:
    """Return README.md."""
    config = json.loads(next(path for path in files if path.name == "config.json").read_text(encoding="utf-8"))
    kind = ", ".join(map(str, config.get("architectures", []))) or "unknown"
    size = sum(path.stat().st_size for path in files if path.suffix == WEIGHTS)
    return (
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- gymfleet\n---\n"
        f"# {name}\n\nA policy that gymfleet trained. Architecture: {kind}; {size:,} bytes of weights.\n"
    )


def check(directory: Path) -> None:
    """Raise `CliError` if files of a fetched model are not what their names say, or name code of the model's own."""
    for path in sorted(directory.rglob("*")):
        if path.suffix == WEIGHTS:
            _check_weights(path)
        elif path.suffix == ".json":
            found = _object(path)
            if "auto_map" in found:
                raise CliError(f"{path.name} names code of the model's own (auto_map): gymfleet runs none")


def _check_weights(path: Path) -> None:
    """Check the header of a safetensors file: its length, its JSON, and that the tensors fill the rest."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LENGTH.size)
        length = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else _MAX_HEADER_BYTES + 1
        try:
            if length > min(_MAX_HEADER_BYTES, size - _LENGTH.size):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length).decode())
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
            if max(ends, default=0) != size - _LENGTH.size - length:
                raise ValueError("its tensors do not fill it")
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise CliError(f"{path.name} is no safetensors file: {error}") from None


def _object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ValueError(f"larger than {_MAX_JSON_BYTES} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path.name} is no JSON: {error}") from None
    return found if isinstance(found, dict) else {}
