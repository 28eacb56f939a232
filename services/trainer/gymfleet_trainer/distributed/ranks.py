"""The processes that train one policy together, each with a share of the micro-batches.

With FSDP2 every forward and backward pass synchronises all ranks, so all of them must run equally many micro-batches:
a rank that has none left runs one whose result does not count.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.microbatches import LossOf, Sums, backward

Result = TypeVar("Result")


class Ranks:
    """Distribute micro-batches over the default process group.

    All ranks make the same calls with equal arguments, in the same order.
    """

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.width = dist.get_world_size()

    @classmethod
    def alone(cls) -> Self:
        """Return the only rank of a process group of one, which is created if this process is in none."""
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        return cls()

    @property
    def first(self) -> bool:
        """Return whether this is the rank that writes files."""
        return self.rank == 0

    def agree(self, value: Result) -> Result:
        """Return the first rank's value on every rank; the values of the others do not matter."""
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def any_of(self, value: Result | None) -> Result | None:
        """Return, on every rank, the first value that is not None on any of them; None if all have None."""
        everyone: list[Any] = [None] * self.width
        dist.all_gather_object(everyone, value)
        return next((one for one in everyone if one is not None), None)

    def map(self, work: Callable[[PackedBatch], Result], batches: Sequence[PackedBatch]) -> Iterator[Result]:
        """Return `work` of every batch, in the order of the batches; tensors come back on the CPU."""
        return iter(self._gather([work(batch) for batch, _ in share(batches, self.rank, self.width)], len(batches)))

    def accumulate(
        self,
        loss_of: LossOf,
        batches: Sequence[PackedBatch],
        parameters: Sequence[nn.Parameter],  # noqa: ARG002 - FSDP reduces the gradients of all it has sharded
    ) -> list[Sums]:
        """See `MicrobatchExecutor`: each parameter's shard gets its gradient of the sum of all batches' losses."""

        def differentiate(batch: PackedBatch, counts: bool) -> Sums:
            loss, sums = loss_of(batch)
            return backward(loss if counts else loss * 0.0, sums)

        return self._gather(
            [differentiate(batch, counts) for batch, counts in share(batches, self.rank, self.width)], len(batches)
        )

    def _gather(self, own: list[Result], total: int) -> list[Result]:
        """Return all ranks' results in the order of the batches that they came from."""
        everyone: list[Any] = [None] * self.width
        dist.all_gather_object(everyone, tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), own))
        return [everyone[index % self.width][index // self.width] for index in range(total)]


def share(batches: Sequence[PackedBatch], rank: int, width: int) -> list[tuple[PackedBatch, bool]]:
    """Return the batches of one rank, equally many on every rank, and whether the result of each counts."""
    own = [(batch, True) for batch in batches[rank::width]]
    missing = -(-len(batches) // width) - len(own)
    return own + [(batch, False) for batch in sorted(batches, key=lambda batch: batch.num_computed)[:1]] * missing


def device_of(wanted: str) -> torch.device:
    """Return the device. `auto` is the GPU if there is one; with several workers, the one set for this process."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(wanted)
