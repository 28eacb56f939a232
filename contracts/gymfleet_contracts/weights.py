"""The contents of a published version's directory: its buckets, the tensors in each, and their checksums."""

import json
import math
import struct
from itertools import accumulate, pairwise
from typing import Annotated, Final, Literal, Self

from pydantic import Base64Bytes, Field, StrictBool, model_validator

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.numbers import NUMBER

MANIFEST: Final = "weights.json"
DtypeName = Literal["F64", "I64", "F32", "I32", "BF16", "F16", "U8", "BOOL"]
ITEM_BYTES: Final[dict[DtypeName, int]] = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "U8": 1,
    "BOOL": 1,
}
"""The size of an element, by safetensors' name of its dtype."""

_MOST_BYTES: Final = 1 << 50
_WORD: Final = 8
"""A bucket's bytes begin at a multiple of this in its file, so that its tensors do."""

_ALIGNED: Final = 256
"""A bucket's bytes begin at a multiple of this in the memory of a GPU."""

Count = Annotated[int, Field(ge=0, le=_MOST_BYTES), NUMBER]


class StoredTensor(WireModel):
    """A tensor, and the range of its bucket's bytes that holds it."""

    name: Annotated[str, Field(min_length=1, max_length=1000)]
    dtype: DtypeName
    shape: Annotated[tuple[Count, ...], Field(max_length=8)]
    begin: Count
    end: Count

    @model_validator(mode="after")
    def has_its_size(self) -> Self:
        """Require as many bytes as the shape needs."""
        if self.end - self.begin != math.prod(self.shape) * ITEM_BYTES[self.dtype]:
            raise ValueError(
                f"{self.name} lies in bytes {self.begin} to {self.end}, which is not the size of its shape"
            )
        return self


class Bucket(WireModel):
    """A safetensors file. Its bytes are those after the header."""

    file: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.safetensors$")]
    size_bytes: Count
    checksum: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    tensors: Annotated[tuple[StoredTensor, ...], Field(min_length=1, max_length=1_000_000)]

    @model_validator(mode="after")
    def is_filled(self) -> Self:
        """Require that the tensors follow one another from the first byte to the last."""
        ends = [0, *(tensor.end for tensor in self.tensors)]
        if [tensor.begin for tensor in self.tensors] != ends[:-1] or ends[-1] != self.size_bytes:
            raise ValueError(f"the tensors of {self.file} do not fill its {self.size_bytes} bytes one after the other")
        return self

    def header(self) -> bytes:
        """Return the header, which precedes the bytes in the file."""
        entries = {
            one.name: {"dtype": one.dtype, "shape": one.shape, "data_offsets": (one.begin, one.end)}
            for one in self.tensors
        }
        text = json.dumps({"__metadata__": {"format": "pt"}, **entries}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _WORD)
        return struct.pack("<Q", len(text)) + text


class WeightsManifest(WireModel):
    """`weights.json`: what a version consists of."""

    buckets: Annotated[tuple[Bucket, ...], Field(min_length=1, max_length=99_999)]

    @model_validator(mode="after")
    def says_everything_once(self) -> Self:
        """Require that no file and no tensor is listed twice."""
        for names in (
            sorted(bucket.file for bucket in self.buckets),
            sorted(tensor.name for bucket in self.buckets for tensor in bucket.tensors),
        ):
            if twice := next((one for one, other in pairwise(names) if one == other), None):
                raise ValueError(f"{twice} stands twice")
        return self

    @property
    def size_bytes(self) -> int:
        """Return the size of all tensors in bytes."""
        return sum(bucket.size_bytes for bucket in self.buckets)

    @property
    def places(self) -> tuple[int, ...]:
        """Return where each bucket begins in a memory that holds all of them, and finally where that memory ends."""
        return tuple(accumulate((-(-one.size_bytes // _ALIGNED) * _ALIGNED for one in self.buckets), initial=0))


_Handle = Annotated[Base64Bytes, Field(min_length=1, max_length=1024, json_schema_extra={"contentEncoding": "base64"})]


class WeightsOnGpu(WireModel):
    """The GPU memory in which the trainer holds a version: its buckets, placed as in its directory's manifest.

    The fields are what CUDA gives another process of the machine for opening that memory, as `torch.UntypedStorage`
    takes it.
    """

    device: Annotated[str, Field(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
    """The UUID of the GPU: the numbers of GPUs differ from process to process."""
    handle: _Handle
    size_bytes: Count
    offset_bytes: Count
    """The offset of the memory in the block that the handle opens."""
    ref_counter_handle: _Handle
    """The shared-memory file in which torch counts who has the memory open."""
    ref_counter_offset: Count
    event_handle: _Handle
    event_sync_required: StrictBool


class WeightsBroadcast(WireModel):
    """How one rollout service receives a version: in a process group of the trainer and all services called now."""

    host: Annotated[str, Field(min_length=1, max_length=255)]
    """The trainer's address, as the service reaches it."""
    port: Annotated[int, Field(ge=1, le=65_535), NUMBER]
    token: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Distinguishes this transfer from others."""
    seat: Annotated[int, Field(ge=1, le=100_000), NUMBER]
    """Distinguishes this service from the others that are called."""
    timeout_s: Annotated[float, Field(gt=0, le=3600), NUMBER]
    """Time for the transfer to begin, and for each bucket."""
    manifest: WeightsManifest
