"""A model's directory: buckets of safetensors, written as the tensors arrive, and the manifest of their content."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.weights import MANIFEST, Bucket, DtypeName, StoredTensor, WeightsManifest
from gymfleet_kit.checksum import Checksum
from torch import Tensor

_WORD: Final = 8
_COPIED: Final = 1 << 20
"""Number of elements that are cast, summed and written together, so that they stay in a processor's cache."""
_EXPORTED_BYTES: Final = 2 << 30
"""Size of a file of an exported model; the first rank holds its tensors at once."""
_WRITERS: Final = 4
"""Buckets that are written at a time. Tensors gathered for them are held as long."""
_DTYPES: Final[dict[torch.dtype, DtypeName]] = {
    torch.float64: "F64", torch.int64: "I64", torch.float32: "F32", torch.int32: "I32", torch.bfloat16: "BF16",
    torch.float16: "F16", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip

Named = tuple[str, Tensor]
Completed = Callable[[Tensor], Tensor]


def write_model(
    directory: Path,
    model: Any,
    tensors: Iterable[Named],
    dtype: torch.dtype,
    *,
    writes: bool,
    bucket_bytes: int = _EXPORTED_BYTES,
    completed: Completed | None = None,
) -> None:
    """Write a transformers model, as transformers and vLLM read it; every rank of a sharded model calls this.

    Args:
        directory: the directory to write to; it is created.
        model: the model whose config is written.
        tensors: see `streamed`.
        dtype: the dtype of its weights.
        writes: whether this is the rank that writes. The others only exhaust `tensors`, to contribute their shards.
        bucket_bytes: the maximum size of the weights' files.
        completed: see `write_weights`.
    """
    try:
        if writes:
            directory.mkdir(parents=True, exist_ok=True)
            write_config(model, directory, dtype)
            write_weights(directory, tensors, bucket_bytes, dtype, completed=completed)
    finally:
        deque(tensors, maxlen=0)  # the other ranks give their shards, also when the first could not write


def write_config(model: Any, directory: Path, dtype: torch.dtype) -> None:
    """Write the config of a transformers model and its generation config, for weights in `dtype`."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)
    config = directory / "config.json"
    written = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**written, "dtype": str(dtype).removeprefix("torch.")}, indent=2))


def write_weights(
    directory: Path,
    tensors: Iterable[Named],
    bucket_bytes: int,
    dtype: torch.dtype | None = None,
    *,
    completed: Completed | None = None,
) -> WeightsManifest:
    """Write the tensors in buckets of at most `bucket_bytes`, with an index if there are several, and the manifest.

    A larger tensor gets its own bucket. Tensors are cast and copied a few MiB at a time, several buckets at once.

    Args:
        directory: the directory to write to.
        tensors: names and tensors; those of a bucket are held until it is written.
        bucket_bytes: the maximum size of a file.
        dtype: the dtype of floating-point tensors; by default each keeps its own.
        completed: returns what to write instead of a tensor, in its shape and, unless `dtype` is given, in its dtype.
            It is called in several threads, just before the tensor is written, so that few results exist at a time.
    """
    buckets: list[Bucket] = []
    writing: deque[Future[Bucket]] = deque()
    with _writers() as pool:
        for number, named in enumerate(in_buckets(tensors, bucket_bytes, dtype), 1):
            if len(writing) == _WRITERS:
                buckets.append(writing.popleft().result())
            writing.append(pool.submit(_write, directory / f"model-{number:05d}.safetensors", named, dtype, completed))
        buckets += [one.result() for one in writing]
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


def in_buckets(tensors: Iterable[Named], bucket_bytes: int, dtype: torch.dtype | None = None) -> Iterator[list[Named]]:
    """Group consecutive tensors while their written size is at most `bucket_bytes`."""
    bucket: list[Named] = []
    size = 0
    for name, tensor in tensors:
        takes = tensor.numel() * _written_as(tensor, dtype).itemsize
        if bucket and size + takes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, tensor))
        size += takes
    if bucket:
        yield bucket


def _written_as(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def _write(file: Path, named: list[Named], dtype: torch.dtype | None, completed: Completed | None) -> Bucket:
    # Elements of 8 bytes first, then of 4, and so on: each then begins at a multiple of its size.
    ordered = sorted(named, key=lambda one: -_written_as(one[1], dtype).itemsize)
    stored: list[StoredTensor] = []
    begin = 0
    for name, tensor in ordered:
        kind = _written_as(tensor, dtype)
        end = begin + tensor.numel() * kind.itemsize
        stored.append(StoredTensor(name=name, dtype=_DTYPES[kind], shape=tuple(tensor.shape), begin=begin, end=end))
        begin = end
    # The header has the same length with any checksum, which is not part of it.
    bucket = Bucket(file=file.name, size_bytes=begin, checksum="0" * 32, tensors=tuple(stored))
    summed = _SumOfBytes()
    with file.open("wb") as stream:
        stream.write(bucket.header())
        for _, tensor in ordered:
            kind = _written_as(tensor, dtype)
            written = tensor if completed is None else completed(tensor)
            for part in torch.split(written.detach().contiguous().view(-1), _COPIED):
                data = part.to(kind).cpu().view(torch.uint8)
                summed.add(data)
                data.numpy().tofile(stream)
    return bucket.model_copy(update={"checksum": summed.digits()})


@contextmanager
def _writers() -> Iterator[ThreadPoolExecutor]:
    """Return threads in each of which torch computes alone.

    Engines sample at the same time, and threads that synchronise every few MiB would wait for a processor each time.
    """
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(_WRITERS, "write-weights", torch.set_num_threads, (1,)) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)


class _SumOfBytes:
    """The checksum of bytes as int64, with the last word padded by zeros."""

    def __init__(self) -> None:
        self._sum = Checksum()
        self._over = torch.empty(0, dtype=torch.uint8)
        """Bytes that do not fill a word yet."""

    def add(self, data: Tensor) -> None:
        if len(self._over):
            data = torch.cat([self._over, data])
        elif data.storage_offset() % _WORD:
            data = data.clone()
        whole = len(data) - len(data) % _WORD
        self._sum.add(data[:whole].view(torch.int64))
        self._over = data[whole:].clone()

    def digits(self) -> str:
        self._sum.add(torch.nn.functional.pad(self._over, (0, -len(self._over) % _WORD)).view(torch.int64))
        return self._sum.digits()


def _final_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"
