"""A version that the trainer holds in the memory of the GPU that both use.

Only the fields of CUDA's handle come over the wire. The manifest in the version's directory determines which bytes are
which tensor, and each bucket is compared with its checksum before the first tensor is loaded.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.weights import DtypeName, WeightsManifest, WeightsOnGpu

from gymfleet_rollout.inference.base import WeightsRejected
from gymfleet_rollout.inference.manifest import checksum_of, read_manifest

_OTHERWISE: Final = 'publish.transfer = "shared_memory" or "disk" needs none'
_DTYPES: Final[dict[DtypeName, str]] = {
    "F64": "float64", "I64": "int64", "F32": "float32", "I32": "int32", "BF16": "bfloat16", "F16": "float16",
    "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def tensors_on_gpu(directory: Path, on_gpu: WeightsOnGpu) -> Iterator[tuple[str, Any]]:
    """Return the tensors of a version's directory, by name, in the memory where the trainer holds them.

    The memory stays open as long as one of them exists. Raises WeightsRejected.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise WeightsRejected(f"{directory} has no manifest, which says what lies on the GPU")
    if on_gpu.size_bytes < manifest.places[-1]:
        raise WeightsRejected(
            f"the trainer holds {on_gpu.size_bytes} bytes on the GPU, and {directory} takes {manifest.places[-1]}"
        )
    whole = _opened(on_gpu)
    require_same_bytes(whole, manifest)
    return tensors_in(whole, manifest)


def require_same_bytes(whole: Any, manifest: WeightsManifest) -> None:
    """Compare the buckets in a memory, (N,) uint8, with their checksums. Raises WeightsRejected."""
    for number, (begin, bucket) in enumerate(zip(manifest.places, manifest.buckets, strict=False), 1):
        if (found := checksum_of(whole[begin : begin + bucket.size_bytes])) != bucket.checksum:
            raise WeightsRejected(
                f"bucket {number}, {bucket.file}, has the checksum {found} on the GPU and not {bucket.checksum}: its "
                "bytes are not those that the trainer wrote"
            )


def tensors_in(whole: Any, manifest: WeightsManifest) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a memory, (N,) uint8, by name, without a copy."""
    import torch  # noqa: PLC0415 - heavy, and needed where an engine is

    for begin, bucket in zip(manifest.places, manifest.buckets, strict=False):
        for one in bucket.tensors:
            data = whole[begin + one.begin : begin + one.end]
            yield one.name, data.view(getattr(torch, _DTYPES[one.dtype])).view(one.shape)


def synchronise() -> None:
    """Wait until the GPU has copied the loaded tensors: from then on the trainer may write over its memory."""
    import torch  # noqa: PLC0415 - as above

    torch.cuda.synchronize()


def _opened(on_gpu: WeightsOnGpu) -> Any:
    """Return the trainer's memory as (N,) uint8. Raises WeightsRejected."""
    import torch  # noqa: PLC0415 - as above

    if not torch.cuda.is_available():
        raise WeightsRejected(f"the version lies on the GPU {on_gpu.device}, and this engine has none; {_OTHERWISE}")
    device = torch.cuda.current_device()
    if (own := str(torch.cuda.get_device_properties(device).uuid)) != on_gpu.device:
        raise WeightsRejected(
            f"the version lies on the GPU {on_gpu.device}, and this engine uses {own}: give them the same, or leave "
            f"out cuda_ipc; {_OTHERWISE}"
        )
    try:
        storage = torch.UntypedStorage._new_shared_cuda(  # noqa: SLF001 - what torch.multiprocessing rebuilds with
            device, on_gpu.handle, on_gpu.size_bytes, on_gpu.offset_bytes, on_gpu.ref_counter_handle,
            on_gpu.ref_counter_offset, on_gpu.event_handle, on_gpu.event_sync_required,
        )  # fmt: skip
    except RuntimeError as error:
        raise WeightsRejected(
            f"the trainer's memory on the GPU cannot be opened ({str(error).splitlines()[0][:200]}): trainer and "
            f"engine need one machine, one user, and the same /dev/shm; {_OTHERWISE}"
        ) from error
    return torch.empty(0, dtype=torch.uint8, device=f"cuda:{device}").set_(storage)
