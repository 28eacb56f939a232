"""Safetensors files that several ranks write and read together: each its own rows, so that none has a whole tensor.

FSDP2 shards a tensor by its rows, and a file stores rows one after the other: a rank's shard is one range of bytes. The
ranks together write an ordinary file, which is the same for any number of ranks.
"""

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from gymfleet_trainer.distributed.ranks import Ranks
from gymfleet_trainer.distributed.sharding import first_row, local

_DTYPES: Final = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_SAME: Final = "same/"
"""Prefix of a tensor's name in the notes of a file, which record the name under which it was written."""
_PIECE_BYTES: Final = 64 << 20
"""Number of bytes that are brought to main memory and written at once."""


class WriteFailed(OSError):
    """A write of one rank failed. Every rank raises it, at the same point."""


def can_hold(value: object) -> bool:
    """Return whether a value is a tensor that such a file can hold."""
    return isinstance(value, Tensor) and value.dtype in _DTYPES


def together(ranks: Ranks | None, work: Callable[[], None], *, first_alone: bool = False) -> None:
    """Have every rank do its part of a write, or only the first one, and wait for all.

    Raises:
        WriteFailed: a part failed; raised on all ranks. A process without ranks raises its own error.
    """
    if ranks is None:
        work()
        return
    error: OSError | None = None
    try:
        if ranks.first or not first_alone:
            work()
    except OSError as failed:
        error = failed
    if (found := ranks.any_of(None if error is None else (error.errno, error.strerror))) is not None:
        raise WriteFailed(*found) from error


class RowFile:
    """One file: its header, and the place of each tensor. Identical tensors are written once, under the first name.

    The tensors must stand still until `write` has returned. A parameter that gets another tensor meanwhile is written
    as it was.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        self._path = path
        distinct: dict[int, str] = {}
        notes = {"format": "pt"}  # without which transformers refuses the file
        for name, value in tensors.items():
            if (first := distinct.setdefault(id(value), name)) != name:
                notes[f"{_SAME}{name}"] = first
        # In the order of safetensors itself: wide elements first, so that each begins at a multiple of its size.
        names = sorted(distinct.values(), key=lambda name: (-tensors[name].element_size(), name))
        header: dict[str, Any] = {"__metadata__": notes}
        self._places: list[tuple[Tensor, int]] = []
        end = 0
        for name in names:
            value = tensors[name]
            start, end = end, end + value.numel() * value.element_size()
            header[name] = {
                "dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end],
            }  # fmt: skip
            self._places.append((value.detach(), start))
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self._head = len(text).to_bytes(8, "little") + text
        self.size_bytes = len(self._head) + end

    def create(self) -> None:
        """Create the file in its full length, with its header. Only the first rank does this, before any `write`."""
        with self._path.open("wb") as file:
            file.write(self._head)
            file.truncate(self.size_bytes)

    def write(self, *, replicated: bool) -> int:
        """Write this rank's rows, and unsharded tensors whole if `replicated`; return the number of bytes."""
        written = 0
        descriptor = os.open(self._path, os.O_WRONLY)
        try:
            for value, start in self._places:
                if replicated or isinstance(value, DTensor):
                    own = local(value)
                    place = len(self._head) + start + first_row(value) * _row_bytes(value)
                    written += _write(descriptor, own, place)
        finally:
            os.close(descriptor)
        return written

    def sync(self) -> None:
        """Make what this rank has written durable. The tensors may change meanwhile."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())


def read_rows(path: Path, ranks: Ranks | None, whole: Callable[[str], bool]) -> dict[str, Tensor]:
    """Read a file's tensors into main memory.

    With ranks, each reads only its own rows, and the tensor is sharded as FSDP2 shards weights. Tensors for whose names
    `whole` is true, and single numbers, are read whole.
    """
    mesh = None if ranks is None else init_device_mesh("cpu", (ranks.width,))
    with safe_open(path, framework="pt") as file:

        def read(stored: str, *, as_it_is: bool) -> Tensor:
            part = file.get_slice(stored)
            shape = part.get_shape()
            if mesh is None or ranks is None or as_it_is or not shape:
                value: Tensor = file.get_tensor(stored)
                return value.clone()
            size = -(-shape[0] // ranks.width)
            start, stop = (min(rank * size, shape[0]) for rank in (ranks.rank, ranks.rank + 1))
            stride = torch.empty(shape, device="meta").stride()
            return DTensor.from_local(
                part[start:stop].clone(), mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride
            )

        found = {name: read(name, as_it_is=whole(name)) for name in file.keys()}  # noqa: SIM118 - it is no mapping
        for note, first in (file.metadata() or {}).items():
            if note.startswith(_SAME):
                name = note.removeprefix(_SAME)
                alike = whole(name) == whole(first)
                found[name] = found[first] if alike else read(first, as_it_is=whole(name))
    return found


def _row_bytes(value: Tensor) -> int:
    return math.prod(value.shape[1:]) * value.element_size()


def _write(descriptor: int, own: Tensor, place: int) -> int:
    """Write a tensor's elements into a file, starting at `place`; return the number of bytes."""
    elements = own.reshape(-1)
    step = max(1, _PIECE_BYTES // own.element_size())
    total = 0
    for start in range(0, len(elements), step):
        piece = elements[start : start + step].cpu().contiguous().view(torch.uint8).numpy().data
        while len(piece):
            count = os.pwrite(descriptor, piece, place + total)
            piece, total = piece[count:], total + count
    return total
