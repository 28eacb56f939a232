"""The contents of a directory of safetensors, read from the headers alone."""

import json
import struct
from pathlib import Path
from typing import Final

from gymfleet_rollout.inference.base import WeightsRejected

_MAX_HEADER_BYTES: Final = 100 * 1024 * 1024
_HEAD: Final = "lm_head.weight"
_ADAPTER: Final = "adapter_config.json"
_PREFIX: Final = "base_model.model."
_FIRST, _SECOND = ".lora_A.weight", ".lora_B.weight"
_LISTED: Final = 5

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(directory: Path) -> Shapes:
    """Return the shape of every tensor in the directory's `*.safetensors`, by name. Raises WeightsRejected."""
    if not directory.is_dir():
        raise WeightsRejected(f"{directory} is not a directory that this service can read")
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightsRejected(f"{directory} holds no *.safetensors file")
    shapes: Shapes = {}
    for file in files:
        shapes.update(_header(file))
    return shapes


def require_same_tensors(expected: Shapes, given: Shapes, directory: Path) -> None:
    """Refuse weights with a missing, unknown or misshapen tensor: an engine would silently keep the old one.

    The output head of a tied model may be included or left out. Raises WeightsRejected.
    """
    missing = sorted(expected.keys() - given.keys() - {_HEAD})
    unknown = sorted(given.keys() - expected.keys() - {_HEAD})
    reshaped = sorted(name for name in expected.keys() & given.keys() if expected[name] != given[name])
    for fault, names in (("lacks", missing), ("has unknown", unknown), ("has other shapes for", reshaped)):
        if names:
            raise WeightsRejected(f"{directory} {fault} {', '.join(names[:_LISTED])} ({len(names)} tensors)")


def require_adapter(base: Shapes, directory: Path, max_rank: int) -> None:
    """Refuse an adapter that has a layer which the model has not got, or only a half of one, or too high a rank.

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


def _header(file: Path) -> Shapes:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MAX_HEADER_BYTES:
                raise WeightsRejected(f"{file} is not a safetensors file: its header claims {length} bytes")
            document = json.loads(stream.read(length))
        data = max((entry["data_offsets"][1] for name, entry in document.items() if name != "__metadata__"), default=0)
        if file.stat().st_size != 8 + length + data:
            raise WeightsRejected(f"{file} is cut short or still being written")
        return {name: tuple(entry["shape"]) for name, entry in document.items() if name != "__metadata__"}
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise WeightsRejected(f"{file} is not a readable safetensors file: {error}") from error
