"""Checks of a published version's files against its manifest. A directory without a manifest is taken as it is."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.strict_json import loads
from gymfleet_contracts.weights import MANIFEST, Bucket, WeightsManifest
from gymfleet_kit.checksum import checksum
from pydantic import ValidationError

from gymfleet_rollout.inference.base import WeightsRejected
from gymfleet_rollout.inference.weights import read_header, weight_files

_MOST_BYTES: Final = 256 * 1024 * 1024
_WORD: Final = 8


def read_manifest(directory: Path) -> WeightsManifest | None:
    """Return the manifest of a directory, or None if there is none.

    Raises WeightsRejected, also for files whose headers differ from the manifest.
    """
    path = directory / MANIFEST
    try:
        if not path.exists():
            return None
        if path.stat().st_size > _MOST_BYTES:
            raise WeightsRejected(f"{path} is larger than {_MOST_BYTES} bytes, which no manifest is")
        manifest = WeightsManifest.model_validate(loads(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise WeightsRejected(f"{path} is no manifest of weights: {where}: {first['msg']}"[:500]) from error
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsRejected(f"{path} is no readable manifest: {error}"[:500]) from error
    listed = {bucket.file for bucket in manifest.buckets}
    found = {file.name for file in weight_files(directory)}
    if strange := sorted(listed ^ found):
        raise WeightsRejected(f"{path} and the directory's weights differ in {', '.join(strange[:5])}")
    for bucket in manifest.buckets:
        _require_header(directory / bucket.file, bucket)
    return manifest


def require_intact(directory: Path) -> None:
    """Compare every bucket with its checksum, if the directory has a manifest. Raises WeightsRejected."""
    manifest = read_manifest(directory)
    for number, bucket in enumerate(() if manifest is None else manifest.buckets, 1):
        file = directory / bucket.file
        found = _checksum(file)
        if found != bucket.checksum:
            raise WeightsRejected(
                f"bucket {number}, {file}, has the checksum {found} and not {bucket.checksum}: its bytes are not those "
                "that the trainer wrote"
            )


def require_loaded(answers: Sequence[Mapping[str, int | str]]) -> None:
    """Raise WeightsRejected if a worker answered `PolicyLoader.load_policy` by refusing the weights."""
    for answer in answers:
        if "refused" in answer:
            raise WeightsRejected(str(answer["refused"]))


def _require_header(file: Path, bucket: Bucket) -> None:
    entries: dict[str, Any] = read_header(file)
    for tensor in bucket.tensors:
        expected = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [tensor.begin, tensor.end]}
        if entries.pop(tensor.name, None) != expected:
            raise WeightsRejected(f"{file} does not hold {tensor.name} as {MANIFEST} says")
    if entries:
        raise WeightsRejected(f"{file} holds {', '.join(sorted(entries)[:5])}, of which {MANIFEST} says nothing")


def _checksum(file: Path) -> str:
    import torch  # noqa: PLC0415 - heavy, and needed where an engine is

    whole = torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)
    header = int.from_bytes(bytes(whole[:_WORD].tolist()), "little")
    return checksum_of(whole[_WORD + header :])


def checksum_of(data: Any) -> str:
    """Return the checksum of bytes, (N,) uint8 on any device; zeros fill the last word."""
    import torch  # noqa: PLC0415 - as above

    if data.storage_offset() % _WORD or len(data) % _WORD:  # one copy: words begin at multiples of 8, and are whole
        data = torch.nn.functional.pad(data, (0, -len(data) % _WORD))
    return checksum(data.view(torch.int64))
