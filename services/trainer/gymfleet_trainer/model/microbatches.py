"""The processing of micro-batches, several at a time: `MicrobatchExecutor`, and its form for a single process.

Small matrices do not divide well: two threads on every product gain little, and lose much when another process uses
a core, because each of thousands of products then waits for its slower half. Whole micro-batches divide perfectly.
Results are combined in the order of the batches, so that they do not depend on which one finished first.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from gymfleet_trainer.model.batching import PackedBatch
from gymfleet_trainer.model.cpu_matmul import fast_float32_matmul

Result = TypeVar("Result")
Sums = dict[str, Tensor | float]
"""A micro-batch's contributions to the metrics, by name; tensors are () and detached."""
LossOf = Callable[[PackedBatch], tuple[Tensor, Sums]]
"""Returns a () float with grad, and sums for the metrics."""

MAX_PARAMETERS = 50_000_000
"""Models above this size fill the cores with a single product, and their gradients are too large to hold several."""


class MicrobatchExecutor(Protocol):
    """Run micro-batches in parallel, in threads of this process or in several processes."""

    @property
    def width(self) -> int:
        """Return how many micro-batches run at a time."""

    def map(self, work: Callable[[PackedBatch], Result], batches: Sequence[PackedBatch]) -> Iterator[Result]:
        """Return `work` of every batch, in the order of the batches."""

    def accumulate(
        self, loss_of: LossOf, batches: Sequence[PackedBatch], parameters: Sequence[nn.Parameter]
    ) -> list[Sums]:
        """Add the gradient of every batch's loss to `parameters`, and return the sums from `loss_of`.

        Args:
            loss_of: may be called from several threads.
            batches: the batches, on the parameters' device.
            parameters: the parameters to differentiate by; a loss need not depend on all of them.
        """


class Threads:
    """Run micro-batches within one process: one per thread on the CPU with small models, otherwise one at a time."""

    def __init__(self, device: torch.device, parameters: Sequence[Tensor]) -> None:
        small = sum(parameter.numel() for parameter in parameters) <= MAX_PARAMETERS
        self.width = torch.get_num_threads() if device.type == "cpu" and small else 1

    def map(self, work: Callable[[PackedBatch], Result], batches: Sequence[PackedBatch]) -> Iterator[Result]:
        """Return `work` of every batch; if several run at a time, each has its own thread."""
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
        self, loss_of: LossOf, batches: Sequence[PackedBatch], parameters: Sequence[nn.Parameter]
    ) -> list[Sums]:
        """See `MicrobatchExecutor`."""
        if self.width == 1:
            return [backward(*loss_of(batch)) for batch in batches]

        def differentiate(batch: PackedBatch) -> tuple[tuple[Tensor | None, ...], Sums]:
            with fast_float32_matmul(batch.tokens.device):
                loss, sums = loss_of(batch)
                return torch.autograd.grad(loss, parameters, allow_unused=True), sums

        collected = []
        # `backward` would add to the parameters in the order of completion, and sums would differ in the last bit.
        for gradients, sums in self.map(differentiate, batches):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
            collected.append(sums)
        return collected


def backward(loss: Tensor, sums: Sums) -> Sums:
    """Add the loss's gradient to the parameters that it depends on, and return `sums`."""
    with fast_float32_matmul(loss.device):
        loss.backward()  # type: ignore[no-untyped-call]
    return sums
