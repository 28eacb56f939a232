"""Versions in the memory of the GPU that the engines share with the trainer.

They are in the run's directory too: an engine that is restarted, or goes back to a version that was not refused, loads
from there when the trainer's memory holds another version, or is gone.
"""

import asyncio
import base64
from collections.abc import Collection
from pathlib import Path
from typing import Any, Self

import torch
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.rollout import StageVersion
from gymfleet_contracts.weights import MANIFEST, WeightsManifest, WeightsOnGpu
from torch import Tensor

from gymfleet_trainer.publish.transfers.base import Offer, Transfer


class CudaIpc(Transfer):
    """The directory, and one block of GPU memory, of a version's size, for as long as the run lives.

    All versions share one block: torch keeps memory that was shared until somebody has opened it, and an engine that
    died before opening it would leave a version behind each time.

    Raises:
        RecipeError: this process has no GPU.
    """

    def __init__(self, weights: Path) -> None:
        if not torch.cuda.is_available():
            raise RecipeError(
                'publish.transfer = "cuda_ipc": the trainer has no GPU; "shared_memory" or "disk" needs none'
            )
        self.root = weights
        self._memory: Tensor | None = None
        self._shared: tuple[Any, ...] = ()

    def offer(self, body: StageVersion, urls: Collection[str]) -> Offer:
        """See `Transfer.offer`. The memory holds the version until all replicas have answered."""
        return _Held(self, body, urls)

    def hold(self, directory: Path) -> WeightsOnGpu:
        """Bring a version's buckets to the GPU, and return where they are. Raises RecipeError if there is no room."""
        manifest = WeightsManifest.model_validate_json((directory / MANIFEST).read_bytes())
        if self._memory is None or self._memory.nbytes < manifest.places[-1]:
            try:
                self._memory = torch.empty(manifest.places[-1], dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                raise RecipeError(
                    f'publish.transfer = "cuda_ipc": the GPU has no {manifest.places[-1] >> 20} MiB left for a '
                    'version; give "shared_memory" or "disk"'
                ) from None
            self._shared = self._memory.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        fill(self._memory, directory, manifest)
        torch.cuda.synchronize()  # a process that opens it does not wait for this one's work
        properties = torch.cuda.get_device_properties(self._memory.device)
        return described(str(properties.uuid), self._shared)

    def close(self) -> None:
        """See `Transfer.close`. The versions in the directory stay, as does the rest of the run."""
        self._memory, self._shared = None, ()
        torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def fill(memory: Tensor, directory: Path, manifest: WeightsManifest) -> None:
    """Copy a version's buckets to their places in the manifest, in an (N,) uint8 memory."""
    for begin, bucket in zip(manifest.places, manifest.buckets, strict=False):
        file = directory / bucket.file
        whole = torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)
        memory[begin : begin + bucket.size_bytes].copy_(whole[len(whole) - bucket.size_bytes :])


def described(device: str, shared: tuple[Any, ...]) -> WeightsOnGpu:
    """Return the result of `UntypedStorage._share_cuda_` in its wire form, without the number of the device."""
    _, handle, size_bytes, offset_bytes, counter, counter_offset, event, event_sync_required = shared
    return WeightsOnGpu(
        device=device,
        handle=base64.b64encode(handle),
        size_bytes=size_bytes,
        offset_bytes=offset_bytes,
        ref_counter_handle=base64.b64encode(counter),
        ref_counter_offset=counter_offset,
        event_handle=base64.b64encode(event),
        event_sync_required=event_sync_required,
    )


class _Held(Offer):
    """Keep the version in the memory while the replicas are asked; the next version overwrites it only after all
    calls have ended.
    """

    def __init__(self, transfer: CudaIpc, body: StageVersion, urls: Collection[str]) -> None:
        super().__init__(body, urls)
        self._transfer = transfer
        self._directory = Path(body.weights_path)

    async def __aenter__(self) -> Self:
        """Bring the version into the memory."""
        on_gpu = await asyncio.to_thread(self._transfer.hold, self._directory)
        self.bodies = {url: body.model_copy(update={"on_gpu": on_gpu}) for url, body in self.bodies.items()}
        return self
