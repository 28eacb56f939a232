"""How fast SFT and DPO learn on a CPU, beside TRL with the same model, data, optimiser and threads.

`python -m benchmarks.bench_trl [--smoke] [--trl PYTHON]`. `--trl` is the Python of an environment with TRL, as
`python -m venv .venv-trl && .venv-trl/bin/pip install trl` makes one; without it only ours is measured. Of TRL the
fastest setting counts, of several sizes of a micro-batch, and for SFT of padded rows, sorted by length, and of packed
ones. Both see the same rows in the same updates, so that the losses can be compared.
"""

import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from gymfleet_contracts.recipe import ScratchModel
from gymfleet_trainer.algorithms.dpo import Dpo, DpoOptions
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import SupervisedOptions, UpdateOptions
from gymfleet_trainer.learning.pairs import Side, pair_of
from gymfleet_trainer.learning.sft_update import SftUpdater
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.scratch import build_scratch_model
from transformers.utils import logging as transformers_logging

from benchmarks.bench_trainer import episodes
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record

PEER: Final = Path(__file__).parent / "peers" / "trl_trainers.py"
OPTIMIZER: Final = OptimizerOptions(learning_rate=1e-3, betas=(0.9, 0.95), max_grad_norm=1.0)
MICROBATCHES: Final = (2, 4, 8, 16, 32)
"""Rows or pairs of a micro-batch of TRL's."""
SIZES: Final = {
    "updates": Size(8, smoke=2, help="the first one is a warm-up"),
    "per_update": Size(32, smoke=2, help="episodes or pairs of an update"),
}

Tokens = dict[str, list[int]]


class Done(NamedTuple):
    """What some updates came to."""

    losses: list[float]
    seconds: list[float]


def main() -> None:
    """Measure and record."""
    command = BenchmarkCommand(__doc__, SIZES)
    command.add_argument("--trl", help="Python of an environment with TRL")
    options = command.options()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        path = build_scratch_model(["a"], ScratchModel(), directory, 0, max_position=1024)
        rows = measure(path, options.updates, options.per_update, options.trl)
    record("trl", rows, options)


def measure(path: Path, updates: int, per_update: int, trl: str | None) -> list[Row]:
    """Every figure, for the model in `path`."""
    vocab_size = PolicyModel.from_pretrained(path).config.vocab_size
    sizes = [size for size in MICROBATCHES if per_update % size == 0]
    rows: list[Row] = []
    for name, data, update, settings in (
        ("SFT", sft_rows(vocab_size, updates, per_update), sft_update(path, updates), (False, True)),
        ("DPO", dpo_pairs(vocab_size, updates * per_update), dpo_update(path, updates), (False,)),
    ):
        num_tokens = sum(map(_num_tokens, data[per_update:]))
        jobs = {
            f"{'packed, ' if packed else ''}micro-batches of {size}": {
                "kind": name.lower(), "rows": data, "per_update": per_update, "microbatch": size, "packed": packed,
            }
            for packed in settings
            for size in sizes
        }  # fmt: skip
        done = {setting: theirs(path, job, trl) for setting, job in jobs.items()} if trl else {}
        rows += _compared(name, num_tokens, _run(data, per_update, update), done)
    return rows


def _num_tokens(row: Tokens) -> int:
    if "input_ids" in row:
        return len(row["input_ids"])
    return 2 * len(row["prompt_ids"]) + len(row["chosen_ids"]) + len(row["rejected_ids"])


def _compared(name: str, num_tokens: int, ours: Done, others: Mapping[str, Done]) -> list[Row]:
    """The rate of ours, and beside it those of TRL's settings, and how far the losses are from each other."""
    rate = num_tokens / sum(ours.seconds[1:])
    if not others:
        return [Row.of(name, rate, "tokens/s")]
    rates = {setting: num_tokens / sum(done.seconds[1:]) for setting, done in others.items()}
    furthest = max(
        abs(one - other) for done in others.values() for one, other in zip(ours.losses, done.losses, strict=True)
    )
    best = max(rates.values())
    return [
        Row.of(name, rate, "tokens/s", baseline=best, goal=2 * best),
        *(Row.of(f"{name} by TRL, {setting}", their_rate, "tokens/s") for setting, their_rate in rates.items()),
        Row.of(f"{name}: largest difference of a loss", furthest, "nat", goal=1e-3, lower_is_better=True),
    ]


def sft_rows(vocab_size: int, updates: int, per_update: int) -> list[Tokens]:
    """Episodes of agents; those of an update are sorted by length, which is what TRL's padding likes best."""
    rows = []
    for number in range(updates):
        batch = episodes(vocab_size, per_update, seed=number)
        for row in sorted(batch, key=lambda row: len(row.token_ids)):
            labels = [token if trained else -100 for token, trained in zip(row.token_ids, row.loss_mask, strict=True)]
            rows.append({"input_ids": list(row.token_ids), "labels": labels})
    return rows


def dpo_pairs(vocab_size: int, count: int, *, seed: int = 0) -> list[Tokens]:
    """Pairs as one turn of an agent makes them: prompts of 60 to 300 tokens, replies of 10 to 60."""
    rng = random.Random(seed)

    def some(shortest: int, longest: int) -> list[int]:
        return [rng.randrange(5, vocab_size) for _ in range(rng.randint(shortest, longest))]

    return [
        {"prompt_ids": some(60, 300), "chosen_ids": some(10, 60), "rejected_ids": some(10, 60)} for _ in range(count)
    ]


def _run(rows: list[Tokens], per_update: int, update: Callable[[list[Tokens]], float]) -> Done:
    """The loss and the seconds of each of our updates."""
    losses, seconds = [], []
    for start in range(0, len(rows), per_update):
        started = time.perf_counter()
        losses.append(update(rows[start : start + per_update]))
        seconds.append(time.perf_counter() - started)
    return Done(losses, seconds)


def sft_update(path: Path, updates: int) -> Callable[[list[Tokens]], float]:
    """Our SFT."""
    section = SupervisedOptions(epochs=updates, tokens_per_batch=1_000_000, optimizer=OPTIMIZER)
    updater = SftUpdater(PolicyModel.from_pretrained(path), section, num_tokens=1)
    rng = random.Random(0)

    def update(rows: list[Tokens]) -> float:
        sequences = [
            _row(row["input_ids"], [label != -100 for label in row["labels"]], str(place))
            for place, row in enumerate(rows)
        ]
        return updater.sft_epoch(sequences, section.tokens_per_batch, rng).loss

    return update


def dpo_update(path: Path, updates: int) -> Callable[[list[Tokens]], float]:
    """Our DPO."""
    section = UpdateOptions(steps=updates, optimizer=OPTIMIZER)
    engine = UpdateEngine(PolicyModel.from_pretrained(path), Dpo(DpoOptions()), section)

    def update(pairs: list[Tokens]) -> float:
        rows = [row for number, pair in enumerate(pairs) for row in rows_of(pair, number)]
        return engine.update(rows)["loss"]

    return update


def rows_of(pair: Tokens, number: int) -> list[TrainSequence]:
    """The rows of a pair."""
    sides = []
    for place, reply in enumerate((pair["chosen_ids"], pair["rejected_ids"])):
        ids = [*pair["prompt_ids"], *reply]
        mask = [False] * len(pair["prompt_ids"]) + [True] * len(reply)
        row = _row(ids, mask, f"pairs/{number}/{place}")
        sides.append(Side("", row.trajectory_id, 1.0 - place, (row,)))
    found = pair_of(*sides)
    assert found is not None
    return [replace(row, unit=str(number)) for row in found.rows()]


def _row(ids: list[int], mask: list[bool], name: str) -> TrainSequence:
    return TrainSequence(ids, mask, [0.0] * len(ids), [0.0] * len(ids), 1, name)


def theirs(path: Path, job: dict[str, Any], trl: str) -> Done:
    """The same of TRL's."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "job.json"
        file.write_text(
            json.dumps(
                {
                    **job,
                    "model": str(path),
                    "learning_rate": OPTIMIZER.learning_rate,
                    "threads": torch.get_num_threads(),
                    "directory": directory,
                }
            )
        )
        done = subprocess.run([trl, str(PEER), str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"TRL failed: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    return Done(told["losses"], told["seconds"])


if __name__ == "__main__":
    main()
