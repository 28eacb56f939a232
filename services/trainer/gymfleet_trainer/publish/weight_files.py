"""A version's directory: buckets of safetensors that are written as the tensors come, and what says what they hold."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.weights import MANIFEST, Bucket, DtypeName, StoredTensor, WeightsManifest
from gymfleet_kit.checksum import checksum
from torch import Tensor

_WORD: Final = 8
_DTYPES: Final[dict[torch.dtype, DtypeName]] = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

Named = tuple[str, Tensor]


def write_config(model: Any, directory: Path, dtype: torch.dtype) -> None:
    """Write the config of a transformers model, and how it generates, for weights in `dtype`."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)
    config = directory / "config.json"
    written = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**written, "dtype": str(dtype).removeprefix("torch.")}, indent=2))


def write_weights(directory: Path, tensors: Iterable[Named], bucket_bytes: int) -> WeightsManifest:
    """Write the tensors in buckets of at most `bucket_bytes`, with an index if there are several, and the manifest.

    A larger tensor has a bucket of its own. No more than a bucket is held twice.
    """
    buckets: list[Bucket] = []
    for number, named in enumerate(in_buckets(tensors, bucket_bytes), 1):
        buckets.append(_write(directory / f"model-{number:05d}.safetensors", named))
    names = {one.file: _final_name(number, len(buckets)) for number, one in enumerate(buckets, 1)}
    for written, final in names.items():
        (directory / written).rename(directory / final)
    manifest = WeightsManifest(
        buckets=tuple(one.model_copy(update={"file": names[one.file]}) for one in buckets),
    )
    if len(buckets) > 1:
        index = {
            "metadata": {"total_size": sum(one.size_bytes for one in buckets)},
            "weight_map": {tensor.name: one.file for one in manifest.buckets for tensor in one.tensors},
        }
        (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    (directory / MANIFEST).write_text(manifest.model_dump_json(), encoding="utf-8")
    return manifest


def in_buckets(tensors: Iterable[Named], bucket_bytes: int) -> Iterator[list[Named]]:
    """Put tensors that follow each other together while they are `bucket_bytes` at most."""
    bucket: list[Named] = []
    size = 0
    for name, tensor in tensors:
        if bucket and size + tensor.nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor.cpu()))
        size += tensor.nbytes
    if bucket:
        yield bucket


def _write(file: Path, named: list[Named]) -> Bucket:
    # Elements of 8 bytes first, then of 4, and so on: each then begins at a multiple of its size.
    ordered = sorted(named, key=lambda one: -one[1].element_size())
    parts = [tensor.contiguous().view(-1).view(torch.uint8) for _, tensor in ordered]
    data = torch.cat(parts)
    stored: list[StoredTensor] = []
    begin = 0
    for name, tensor in ordered:
        end = begin + tensor.nbytes
        stored.append(
            StoredTensor(name=name, dtype=_DTYPES[tensor.dtype], shape=tuple(tensor.shape), begin=begin, end=end)
        )
        begin = end
    bucket = Bucket(file=file.name, size_bytes=len(data), checksum=checksum(_words(data)), tensors=tuple(stored))
    with file.open("wb") as stream:
        stream.write(bucket.header())
        data.numpy().tofile(stream)
    return bucket


def _words(data: Tensor) -> Tensor:
    """Return bytes as int64, with zeros for those that the last word lacks."""
    return torch.nn.functional.pad(data, (0, -len(data) % _WORD)).view(torch.int64)


def _final_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
