"""Find the model's files: a local directory, or a download from the hub."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gymfleet_contracts.recipe import MODEL_BUILT

_WANTED: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
_TWICE: Final = "consolidated*"
"""A second copy of the weights, in Mistral's own form."""


class ModelNotFound(Exception):
    """The model cannot be used; the message says what was looked for and where."""


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A model's directory."""

    path: Path
    built_by: str | None = None
    """The recipe that builds this model from scratch, possibly not yet; None for a model that exists."""

    @property
    def missing(self) -> str:
        """Return a description of what is missing; empty if the model is complete."""
        if self.built_by is None or (self.path / MODEL_BUILT).is_file():
            return ""
        return f"waiting for the model of recipe {self.built_by} at {self.path}: gymfleet-trainer build makes it"


def find_model(model: str) -> Path:
    """Return the directory, with weights, of a model given by path or hub id. Raises ModelNotFound."""
    path = Path(model).expanduser()
    if path.is_dir():
        return _require_files(path.resolve())
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise ModelNotFound(f"no model directory at {model}")
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - needed for hub ids alone

    try:
        return _require_files(Path(snapshot_download(model, allow_patterns=list(_WANTED), ignore_patterns=[_TWICE])))
    except ModelNotFound:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelNotFound(f"{model!r} is neither a local directory nor to be had from the hub: {reason}") from error


def vocab_size(path: Path) -> int:
    """Return the size of the vocabulary; every token id is smaller. Raises ModelNotFound."""
    return _number(path, "vocab_size")


def longest_context(path: Path) -> int | None:
    """Return the context length that the model was made for, or None if its files do not contain it."""
    try:
        return _number(path, "max_position_embeddings")
    except ModelNotFound:
        return None


def _number(path: Path, name: str) -> int:
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        return int(config.get("text_config", config)[name])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFound(f"{path / 'config.json'} has no usable {name}: {error}") from error


def _require_files(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelNotFound(f"{path} holds no config.json: not a model directory")
    if all(file.match(_TWICE) for file in path.glob("*.safetensors")):
        raise ModelNotFound(f"{path} holds no *.safetensors file of the form that transformers writes")
    return path
