"""The trainer's speed-up from computing the shared beginnings of rows once, over computing every row whole.

`python -m benchmarks.bench_trees [--smoke]`. Forward and backward of one policy gradient on the quickstart's model, in
float32 on the CPU: groups of 16 rows that have 70 % of their tokens in common, and trees of turns as produced by a
search or `tree_sampling`, in which each path branches off another at some turn. Both ways are measured alternately,
each with several sizes of micro-batches, of which the fastest counts. The limit is the gain from fewer tokens alone.
"""

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack
from gymfleet_trainer.model.microbatches import backward
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.scratch import build_scratch_model
from torch import Tensor
from transformers.utils import logging as transformers_logging

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record

GROUP: Final = 16
GOAL: Final = 2.0
"""Factor on tokens per second where 70 % are shared."""
EXACT: Final = 1e-5
"""Tolerance of the loss, and of the largest gradient."""
_MICROBATCHES: Final = (2048, 4096, 8192)
"""Tokens computed at a time."""
_WHOLE_ROWS: Final = (4, 8, 16, 32)
"""Rows computed at a time, where each is computed whole."""
SIZES: Final = {
    "groups": Size(8, smoke=1),
    "length": Size(300, smoke=40, help="tokens of a row of a plain group"),
    "repeat": Size(5, smoke=1, help="the best of so many is kept"),
}


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        model = PolicyModel.from_pretrained(build_scratch_model(["a"], ScratchModel(), directory, 0, max_position=1024))
        vocab_size = model.config.vocab_size
        rng = random.Random(0)
        plain = [row for n in range(options.groups) for row in shared_group(rng, vocab_size, n, options.length)]
        trees = [row for n in range(options.groups) for row in tree_of_turns(rng, vocab_size, n)]
        rows = [
            *measure("groups of 16, 70 % shared", model, plain, options.repeat, goal=GOAL),
            *measure("trees of 16 paths", model, trees, options.repeat),
        ]
    record("trees", rows, options)


def measure(
    name: str, model: PolicyModel, rows: Sequence[TrainSequence], repeat: int, *, goal: float | None = None
) -> list[Row]:
    """Return the figures of some rows."""
    num_tokens = sum(len(row.token_ids) for row in rows)
    ways: dict[tuple[str, int], list[PackedBatch]] = {
        **{("once", limit): pack(rows, limit) for limit in _MICROBATCHES},
        **{("whole", size): list(unshared(rows, size)) for size in _WHOLE_ROWS},
    }
    seconds = dict.fromkeys(ways, math.inf)
    for _ in range(repeat + 1):  # the first of each warms up, and may be the fastest all the same
        for way, batches in ways.items():
            seconds[way] = min(seconds[way], _timed(lambda batches=batches: differentiate(model, batches)))  # type: ignore[misc]
    once, whole = (
        num_tokens / min(spent for (kind, _), spent in seconds.items() if kind == way) for way in ("once", "whole")
    )
    everything = pack(rows, num_tokens)
    computed = sum(batch.num_computed for batch in everything)
    loss, gradients = differentiate(model, everything)
    expected_loss, expected = differentiate(model, ways["whole", _WHOLE_ROWS[0]])
    largest = max(float(gradient.abs().max()) for gradient in expected)
    apart = max(float((one - two).abs().max()) for one, two in zip(gradients, expected, strict=True))
    return [
        Row.of(f"{name}: share of the tokens that is computed", computed / num_tokens, ""),
        Row.of(
            f"{name}: shared tokens once, beside whole rows", once, "tokens/s", baseline=whole,
            goal=None if goal is None else round(goal * whole),
        ),
        Row.of(f"{name}: times as fast, of at most {num_tokens / computed:.2f}", once / whole, "x", goal=goal),
        Row.of(
            f"{name}: loss, difference", abs(loss - expected_loss) / EXACT, f"{EXACT:g}", goal=1, lower_is_better=True
        ),
        Row.of(
            f"{name}: gradients, largest difference of the largest", apart / largest / EXACT, f"{EXACT:g}", goal=1,
            lower_is_better=True,
        ),
    ]  # fmt: skip


def differentiate(model: PolicyModel, batches: Sequence[PackedBatch]) -> tuple[float, list[Tensor]]:
    """Return the loss of a policy gradient over all batches, and its gradients."""
    model.zero_grad()
    count = sum(len(batch.trained) for batch in batches)
    total = 0.0
    for batch in batches:
        logprobs = model.token_logprobs(batch).logprobs
        loss = -(logprobs * batch.fields["advantages"]).sum() / count
        backward(loss, {})
        total += float(loss.detach())
    return total, [weight.grad for weight in model.parameters() if weight.grad is not None]


def unshared(rows: Sequence[TrainSequence], size: int) -> Iterator[PackedBatch]:
    """Yield the same rows, `size` at a time, each computed from its first token on."""
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        (batch,) = pack(some, sum(len(row.token_ids) for row in some))
        yield replace(batch, shared=None)


def shared_group(rng: random.Random, vocab_size: int, number: int, length: int) -> list[TrainSequence]:
    """Return 16 rows that begin with the same 70 % of their tokens, and are trained on the rest."""
    common = [rng.randrange(vocab_size) for _ in range(round(0.7 * length))]
    rest = length - len(common)
    return [
        _row(rng, f"group {number}/{place}", [*common, *(rng.randrange(vocab_size) for _ in range(rest))], len(common))
        for place in range(GROUP)
    ]


def tree_of_turns(rng: random.Random, vocab_size: int, number: int) -> list[TrainSequence]:
    """Return 16 paths of eight turns after a prompt of 100 tokens; each branches off another path at some turn.

    A turn has 25 tokens of an observation and 10 of a reply. All replies are trained in every row.
    """
    prompt = [rng.randrange(vocab_size) for _ in range(100)]
    paths: list[list[tuple[int, ...]]] = []
    for _ in range(GROUP):
        kept = rng.choice(paths)[: rng.randrange(8)] if paths else []
        new = [tuple(rng.randrange(vocab_size) for _ in range(35)) for _ in range(8 - len(kept))]
        paths.append([*kept, *new])
    tokens = [[*prompt, *(token for turn in path for token in turn)] for path in paths]
    return [_row(rng, f"tree {number}/{place}", ids, 100, period=35, silent=25) for place, ids in enumerate(tokens)]


def _row(
    rng: random.Random, name: str, token_ids: list[int], first: int, *, period: int = 1, silent: int = 0
) -> TrainSequence:
    """Return a row that is trained from `first` on, except for the beginning of each period."""
    mask = [place >= first and (place - first) % period >= silent for place in range(len(token_ids))]
    nothing = [0.0] * len(token_ids)
    advantages = rng.choice([-1.0, 1.0]) * torch.tensor(mask)
    return TrainSequence(token_ids, mask, nothing, nothing, 0, name, fields={"advantages": advantages})


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
