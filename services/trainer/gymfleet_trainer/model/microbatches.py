"""How micro-batches are worked through, several at a time: `MicrobatchExecutor`, and the ones within a single process.

Small matrices do not divide well: two threads on every product gain little, and lose much when another process holds
a core, because each of thousands of products then waits for its slower half. Whole micro-batches divide perfectly.
Results are combined in the order of the batches, so that the outcome does not depend on who finished first.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from gymfleet_trainer.algorithms.update_metrics import Sums
from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.cpu_matmul import fast_float32_matmul

Result = TypeVar("Result")

_MAX_PARAMETERS = 50_000_000
"""Larger models fill the cores with a single product, and their gradients are too large to hold several of."""


class MicrobatchExecutor(Protocol):
    """Where micro-batches run side by side: threads of this process, or processes."""

    @property
    def width(self) -> int:
        """How many micro-batches run at a time."""

    def map(self, work: Callable[[PackedBatch], Result], batches: Sequence[PackedBatch]) -> Iterator[Result]:
        """`work` of every batch, in the order of the batches."""

    def accumulate(
        self,
        loss_of: Callable[[PackedBatch], tuple[Tensor, Sums]],
        batches: Sequence[PackedBatch],
        parameters: Sequence[nn.Parameter],
    ) -> list[Sums]:
        """Add the gradient of every batch's loss to `parameters`; returns what else `loss_of` had to say.

        Args:
            loss_of: gives () float with grad, and sums for the metrics. May be called from several threads.
            batches: on the parameters' device.
            parameters: those to differentiate by; a loss need not depend on all of them.
        """


class Threads:
    """Micro-batches within one process: on the CPU with small models one per thread, else one alone."""

    def __init__(self, device: torch.device, parameters: Sequence[Tensor]) -> None:
        small = sum(parameter.numel() for parameter in parameters) <= _MAX_PARAMETERS
        self.width = torch.get_num_threads() if device.type == "cpu" and small else 1

    def map(self, work: Callable[[PackedBatch], Result], batches: Sequence[PackedBatch]) -> Iterator[Result]:
        """With several at a time, each has one thread for itself."""
        if self.width == 1 or len(batches) < 2:
            yield from map(work, batches)
            return
        num_threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(self.width, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                yield from pool.map(work, batches)
        finally:
            torch.set_num_threads(num_threads)

    def accumulate(
        self,
        loss_of: Callable[[PackedBatch], tuple[Tensor, Sums]],
        batches: Sequence[PackedBatch],
        parameters: Sequence[nn.Parameter],
    ) -> list[Sums]:
        """See `MicrobatchExecutor`."""
        if self.width == 1:
            return [backward(*loss_of(batch)) for batch in batches]

        def differentiate(batch: PackedBatch) -> tuple[tuple[Tensor | None, ...], Sums]:
            with fast_float32_matmul(batch.tokens.device):
                loss, sums = loss_of(batch)
                return torch.autograd.grad(loss, parameters, allow_unused=True), sums

        collected = []
        # `backward` would add to the parameters in the order of completion: other sums, in the last bit, every time.
        for gradients, sums in self.map(differentiate, batches):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            collected.append(sums)
        return collected


def backward(loss: Tensor, sums: Sums) -> Sums:
    """Add the loss's gradient to what it depends on; returns `sums`."""
    with fast_float32_matmul(loss.device):
        loss.backward()  # type: ignore[no-untyped-call]
    return sums
