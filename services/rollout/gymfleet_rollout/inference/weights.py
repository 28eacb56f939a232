"""The contents of a directory of safetensors, read from the headers alone.

A published model's directory may hold more than its weights: `consolidated.safetensors` repeats them under Mistral's
own names, and old checkpoints of Llama hold tables that are computed. Neither counts as a tensor of the model.
"""

import json
import struct
from pathlib import Path
from typing import Any, Final

from gymfleet_rollout.inference.base import WeightsRejected

_MAX_HEADER_BYTES: Final = 100 * 1024 * 1024
_HEAD: Final = "lm_head.weight"
_ADAPTER: Final = "adapter_config.json"
_PREFIX: Final = "base_model.model."
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_COMPUTED: Final = "rotary_emb.inv_freq"
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_OTHER_FORM: Final = "consolidated"
_LISTED: Final = 5

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(directory: Path) -> Shapes:
    """Return the shape of every tensor of the model in a directory, by name. Raises WeightsRejected.

    If `model.safetensors.index.json` exists, they are the tensors that it lists.
    """
    if not directory.is_dir():
        raise WeightsRejected(f"{directory} is not a directory that this service can read")
    index = directory / _INDEX
    listed = _listed(index) if index.is_file() else None
    shapes: Shapes = {}
    for file in _files(directory, listed):
        shapes.update((name, tuple(entry["shape"])) for name, entry in read_header(file).items())
    if listed is not None:
        if lacking := sorted(listed.keys() - shapes.keys()):
            raise WeightsRejected(f"{index} lists {_some(lacking)}, which its files have not got")
        shapes = {name: shapes[name] for name in listed}
    return {name: shape for name, shape in shapes.items() if not name.endswith(_COMPUTED)}


def weight_files(directory: Path) -> list[Path]:
    """Return the files from which the model in a directory is loaded. Raises WeightsRejected."""
    index = directory / _INDEX
    return _files(directory, _listed(index) if index.is_file() else None)


def _files(directory: Path, listed: dict[str, str] | None) -> list[Path]:
    if listed is not None:
        return [directory / name for name in sorted(set(listed.values()))]
    if (single := directory / _SINGLE).is_file():
        return [single]
    files = sorted(file for file in directory.glob("*.safetensors") if not file.name.startswith(_OTHER_FORM))
    if not files:
        raise WeightsRejected(f"{directory} holds no *.safetensors file of the model")
    return files


def _listed(index: Path) -> dict[str, str]:
    """Return the file of each tensor, as listed in the index."""
    try:
        document: Any = json.loads(index.read_text(encoding="utf-8"))
        listed = {str(name): str(file) for name, file in document["weight_map"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsRejected(f"{index} is not a readable index: {error}") from error
    if not listed or any(Path(file).name != file for file in listed.values()):
        raise WeightsRejected(f"{index} must list tensors by the names of files beside it")
    return listed


def require_same_tensors(expected: Shapes, given: Shapes, directory: Path) -> None:
    """Refuse weights with a missing, unknown or misshapen tensor: an engine would silently keep the old one.

    The output head of a tied model may be included or left out. Raises WeightsRejected.
    """
    missing = sorted(name for name in expected.keys() - given.keys() if not _may_be_left_out(name, directory))
    unknown = sorted(name for name in given.keys() - expected.keys() if not name.endswith(_HEAD))
    reshaped = sorted(name for name in expected.keys() & given.keys() if expected[name] != given[name])
    for fault, names in (("lacks", missing), ("has unknown", unknown), ("has other shapes for", reshaped)):
        if names:
            raise WeightsRejected(f"{directory} {fault} {_some(names)}")


def _may_be_left_out(name: str, directory: Path) -> bool:
    """Return whether a tensor is an output head, and the model's config does not state that it is not tied."""
    if not name.endswith(_HEAD):
        return False
    try:
        config: Any = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        return config.get("tie_word_embeddings") is not False
    except (OSError, ValueError, AttributeError):
        return True


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:_LISTED])} ({len(names)} tensors)"


def require_adapter(base: Shapes, directory: Path, max_rank: int) -> None:
    """Refuse an adapter with a layer that the model lacks, with half a layer, or with too high a rank.

    Raises WeightsRejected.
    """
    given = tensor_shapes(directory)
    if not is_adapter(directory):
        raise WeightsRejected(
            f"{directory} holds no {_ADAPTER}, and this service was started for adapters: "
            "GYMFLEET_ROLLOUT_MAX_LORA_RANK=0 is for whole weights"
        )
    layers = {name.removesuffix(_FIRST) for name in given if name.endswith(_FIRST)}
    pairs = {layer + end for layer in layers for end in (_FIRST, _SECOND)}
    if strange := sorted(given.keys() ^ pairs):
        raise WeightsRejected(
            f"{directory} lacks, or has beside the pairs of an adapter, {', '.join(strange[:_LISTED])}"
        )
    for layer in sorted(layers):
        rank = given[layer + _FIRST][0]
        num_outputs, num_inputs = base.get(f"{layer.removeprefix(_PREFIX)}.weight", (0, 0))
        if (given[layer + _FIRST], given[layer + _SECOND]) != ((rank, num_inputs), (num_outputs, rank)):
            raise WeightsRejected(f"{directory} has an adapter of {layer}, which is no such layer of this model")
        if rank > max_rank:
            raise WeightsRejected(
                f"{directory} is an adapter of rank {rank}, and this service was started for rank {max_rank} at most: "
                f"GYMFLEET_ROLLOUT_MAX_LORA_RANK={rank}"
            )


def is_adapter(directory: Path) -> bool:
    """Return whether a directory holds an adapter and not whole weights."""
    return (directory / _ADAPTER).is_file()


def read_header(file: Path) -> dict[str, Any]:
    """Return the entry of each tensor in the header of a safetensors file. Raises WeightsRejected."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MAX_HEADER_BYTES:
                raise WeightsRejected(f"{file} is not a safetensors file: its header claims {length} bytes")
            document: dict[str, Any] = json.loads(stream.read(length))
        entries = {name: entry for name, entry in document.items() if name != "__metadata__"}
        data = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        if file.stat().st_size != 8 + length + data:
            raise WeightsRejected(f"{file} is cut short or still being written")
        for entry in entries.values():
            tuple(entry["shape"])
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise WeightsRejected(f"{file} is not a readable safetensors file: {error}") from error
    return entries
