"""The contents of a directory of safetensors, read from the headers alone."""

import json
import struct
from pathlib import Path
from typing import Final

from gymfleet_rollout.inference.base import WeightsRejected

_MAX_HEADER_BYTES: Final = 100 * 1024 * 1024
_HEAD: Final = "lm_head.weight"
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
