"""Micro-batches side by side on the CPU's cores.

Small matrices do not divide well: two threads on every product gain little, and lose much when another process holds
a core, because each of thousands of products then waits for its slower half. Whole micro-batches divide perfectly.
Results are combined in the order of the batches, so that the outcome does not depend on who finished first.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

from gymfleet_trainer.batching import PackedBatch
from gymfleet_trainer.cpu_matmul import fast_float32_matmul
from gymfleet_trainer.update_metrics import Sums

Result = TypeVar("Result")

_MAX_PARAMETERS = 50_000_000
"""Larger models fill the cores with a single product, and their gradients are too large to hold several of."""


def num_workers(device: torch.device, parameters: Sequence[Tensor]) -> int:
    """How many micro-batches run at a time."""
    if device.type != "cpu" or sum(parameter.numel() for parameter in parameters) > _MAX_PARAMETERS:
        return 1
    return torch.get_num_threads()


def map_microbatches(
    work: Callable[[PackedBatch], Result], batches: Sequence[PackedBatch], workers: int
) -> Iterator[Result]:
    """`work` of every batch, in the order of the batches. With several workers, each has one thread for itself."""
    if workers == 1 or len(batches) < 2:
        yield from map(work, batches)
        return
    num_threads = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(work, batches)
    finally:
        torch.set_num_threads(num_threads)


def accumulate_gradients(
    loss_of: Callable[[PackedBatch], tuple[Tensor, Sums]],
    batches: Sequence[PackedBatch],
    parameters: Sequence[nn.Parameter],
    workers: int,
) -> list[Sums]:
    """Add the gradient of every batch's loss to `parameters`; returns what else `loss_of` had to say.

    Args:
        loss_of: gives () float with grad, and sums for the metrics. Called from several threads.
        batches: on the parameters' device.
        parameters: those to differentiate by; a loss need not depend on all of them.
        workers: from `num_workers`.
    """
    if workers == 1:
        return [_backward(*loss_of(batch)) for batch in batches]

    def differentiate(batch: PackedBatch) -> tuple[tuple[Tensor | None, ...], Sums]:
        with fast_float32_matmul(batch.tokens.device):
            loss, sums = loss_of(batch)
            return torch.autograd.grad(loss, parameters, allow_unused=True), sums

    collected = []
    # `backward` would add to the parameters in the order of completion: other sums, in the last bit, every time.
    for gradients, sums in map_microbatches(differentiate, batches, workers):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        collected.append(sums)
    return collected


def _backward(loss: Tensor, sums: Sums) -> Sums:
    with fast_float32_matmul(loss.device):
        loss.backward()  # type: ignore[no-untyped-call]
    return sums
