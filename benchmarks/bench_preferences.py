"""How fast DPO learns on a CPU, beside TRL with the same model, pairs, optimiser and threads.

`python -m benchmarks.bench_preferences [--smoke] [--trl PYTHON]`. `--trl` is the Python of an environment with TRL, as
`python -m venv .venv-trl && .venv-trl/bin/pip install trl` makes one; without it only ours is measured. Of TRL the
fastest size of a micro-batch counts. Both see the same pairs in the same order, so that the losses can be compared.
"""

import json
import random
import subprocess
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.recipe import ScratchModel
from gymfleet_trainer.algorithms.dpo import Dpo, DpoOptions
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import UpdateOptions
from gymfleet_trainer.learning.pairs import Side, pair_of
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.scratch import build_scratch_model
from transformers.utils import logging as transformers_logging

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record

PEER: Final = Path(__file__).parent / "peers" / "trl_dpo.py"
LEARNING_RATE: Final = 1e-3
MICROBATCHES: Final = (2, 4, 8, 16)
"""Pairs of a micro-batch of TRL's."""
SIZES: Final = {
    "updates": Size(6, smoke=2, help="the first one is a warm-up"),
    "pairs_per_batch": Size(16, smoke=2, help="pairs of an update"),
}

TokenPair = dict[str, list[int]]


def main() -> None:
    """Measure and record."""
    command = BenchmarkCommand(__doc__, SIZES)
    command.add_argument("--trl", help="Python of an environment with TRL")
    options = command.options()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        path = build_scratch_model(["a"], ScratchModel(), directory, 0, max_position=1024)
        rows = measure(path, options.updates, options.pairs_per_batch, options.trl)
    record("preferences", rows, options)


def measure(path: Path, updates: int, pairs_per_batch: int, trl: str | None) -> list[Row]:
    """Every figure, for the model in `path`."""
    pairs = token_pairs(PolicyModel.from_pretrained(path).config.vocab_size, updates * pairs_per_batch)
    timed = pairs[pairs_per_batch:]
    num_tokens = sum(2 * len(one["prompt_ids"]) + len(one["chosen_ids"]) + len(one["rejected_ids"]) for one in timed)
    losses, seconds = ours(path, pairs, pairs_per_batch)
    rate = num_tokens / sum(seconds[1:])
    if trl is None:
        return [Row.of("DPO", rate, "tokens/s")]
    rows, best, difference = [], 0.0, 0.0
    for microbatch in (size for size in MICROBATCHES if size <= pairs_per_batch):
        their_losses, their_seconds = theirs(path, pairs, pairs_per_batch, microbatch, trl)
        their_rate = num_tokens / sum(their_seconds[1:])
        best = max(best, their_rate)
        difference = max(abs(one - other) for one, other in zip(losses, their_losses, strict=True))
        rows.append(Row.of(f"DPO by TRL, micro-batches of {microbatch} pairs", their_rate, "tokens/s"))
    return [
        Row.of("DPO", rate, "tokens/s", baseline=best, goal=2 * best),
        *rows,
        Row.of("largest difference of a loss", difference, "nat", goal=1e-3, lower_is_better=True),
    ]


def token_pairs(vocab_size: int, count: int, *, seed: int = 0) -> list[TokenPair]:
    """Pairs as one turn of an agent makes them: prompts of 60 to 300 tokens, replies of 10 to 60."""
    rng = random.Random(seed)

    def some(shortest: int, longest: int) -> list[int]:
        return [rng.randrange(5, vocab_size) for _ in range(rng.randint(shortest, longest))]

    return [
        {"prompt_ids": some(60, 300), "chosen_ids": some(10, 60), "rejected_ids": some(10, 60)} for _ in range(count)
    ]


def ours(path: Path, pairs: list[TokenPair], pairs_per_batch: int) -> tuple[list[float], list[float]]:
    """The loss and the seconds of each update."""
    section = UpdateOptions(
        steps=len(pairs) // pairs_per_batch,
        optimizer=OptimizerOptions(learning_rate=LEARNING_RATE, betas=(0.9, 0.95), max_grad_norm=1.0),
    )
    engine = UpdateEngine(PolicyModel.from_pretrained(path), Dpo(DpoOptions()), section)
    losses, seconds = [], []
    for start, end in pairwise(range(0, len(pairs) + 1, pairs_per_batch)):
        rows = [row for number in range(start, end) for row in rows_of(pairs[number], number)]
        started = time.perf_counter()
        losses.append(engine.update(rows)["loss"])
        seconds.append(time.perf_counter() - started)
    return losses, seconds


def rows_of(pair: TokenPair, number: int) -> list[TrainSequence]:
    """The rows of a pair."""
    sides = []
    for place, reply in enumerate((pair["chosen_ids"], pair["rejected_ids"])):
        ids = [*pair["prompt_ids"], *reply]
        mask = [False] * len(pair["prompt_ids"]) + [True] * len(reply)
        row = TrainSequence(ids, mask, [0.0] * len(ids), [0.0] * len(ids), 1, f"pairs/{number}/{place}")
        sides.append(Side("", row.trajectory_id, 1.0 - place, (row,)))
    found = pair_of(*sides)
    assert found is not None
    return [replace(row, unit=str(number)) for row in found.rows()]


def theirs(
    path: Path, pairs: list[TokenPair], pairs_per_batch: int, microbatch: int, trl: str
) -> tuple[list[float], list[float]]:
    """The same of TRL's."""
    with tempfile.TemporaryDirectory() as directory:
        job: dict[str, Any] = {
            "model": str(path), "pairs": pairs, "pairs_per_batch": pairs_per_batch, "microbatch": microbatch,
            "learning_rate": LEARNING_RATE, "threads": torch.get_num_threads(), "directory": directory,
        }  # fmt: skip
        file = Path(directory) / "job.json"
        file.write_text(json.dumps(job))
        done = subprocess.run([trl, str(PEER), str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"TRL failed: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return told["losses"], told["seconds"]


if __name__ == "__main__":
    main()
