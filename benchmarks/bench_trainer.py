"""How fast the trainer learns on a CPU: one batch of the quickstart's size and model, forward, backward and update.

`python -m benchmarks.bench_trainer [--smoke]`. The baseline is a plain loop over the same sequences with the same
model: transformers' forward pass on padded rows, all logits, PyTorch's own matrix products. Rows are sorted by length,
which pads least, and the fastest of several numbers of rows counts.
"""

import math
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_contracts.trajectory import StateValue
from gymfleet_kit.plugins import included
from gymfleet_trainer.learning.algorithm import Need
from gymfleet_trainer.learning.engine import UpdateEngine
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.pairs import PREFERRED
from gymfleet_trainer.learning.plugins import algorithm_of
from gymfleet_trainer.learning.preferences import Preference
from gymfleet_trainer.model.batching import TrainSequence, TurnSpan, pack
from gymfleet_trainer.model.cpu_matmul import fast_float32_matmul, onednn_is_exact
from gymfleet_trainer.model.flops import DecoderShape, training_flops
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.scratch import build_scratch_model
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record

MICROBATCHES = (2048, 4096, 8192, 16384)
PADDED_ROWS: Final = (8, 16, 24, 32)
"""Rows per micro-batch of the plain loop."""
SIZES: Final = {
    "sequences": Size(256, smoke=3),
    "repeat": Size(3, smoke=1, help="the best of so many is kept"),
}


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        path = build_scratch_model(["a"], ScratchModel(), directory, 0, max_position=1024)
        rows = measure(path, options.sequences, options.repeat)
    record("trainer", rows, options)


def measure(path: Path, count: int, repeat: int) -> list[Row]:
    """Return all figures, for the model in `path` and `count` sequences."""
    model = PolicyModel.from_pretrained(path)
    sequences = episodes(model.config.vocab_size, count)
    sequences = _sampled(model, sequences)
    num_tokens = sum(len(sequence.token_ids) for sequence in sequences)
    shape = DecoderShape.from_config(model.config)
    flops = training_flops(shape, [len(s.token_ids) for s in sequences], sum(s.num_trained for s in sequences))
    ceiling = matmul_ceiling(torch.float32, repeat)
    padded = {
        size: num_tokens / best(_padded_loop(path, sequences, size), repeat)
        for size in sorted({min(size, len(sequences)) for size in PADDED_ROWS})
    }
    rows = [Row.of(f"plain padded loop, {size} rows at a time", rate, "tokens/s") for size, rate in padded.items()]
    baseline = max(padded.values())
    rates = {}
    for microbatch in MICROBATCHES:
        updater = _engine(model, microbatch, sampler_is_exact=True)
        rates[microbatch] = num_tokens / best(lambda updater=updater: updater.update(sequences), repeat)  # type: ignore[misc]
        rows.append(Row.of(f"update, micro-batches of {microbatch}", rates[microbatch], "tokens/s", baseline=baseline))
    achieved = flops / num_tokens * max(rates.values()) / 1e9
    rows.append(Row.of("matrix products, float32", ceiling, "GFLOP/s"))
    rows.append(Row.of("update, best of them", achieved, "GFLOP/s", baseline=ceiling))
    rows += _mixed_precision(path, sequences, num_tokens, repeat, max(rates.values()))
    return rows + _algorithms(path, sequences, num_tokens, repeat)


def episodes(vocab_size: int, count: int, *, seed: int = 0, shortest: int = 150, longest: int = 400) -> list[Any]:
    """Return sequences like those of agents: a prompt of 100 tokens, then replies of 10 between observations of 25."""
    rng = random.Random(seed)
    sequences = []
    for index in range(count):
        length = rng.randint(shortest, longest)
        mask = [place >= 100 and (place - 100) % 35 < 10 for place in range(length)]
        mask[-1] = True
        advantage = rng.choice([-1.0, 1.0])
        ends = [place + 1 for place in range(length) if mask[place] and not (place + 1 < length and mask[place + 1])]
        starts = [place for place in range(length) if mask[place] and not mask[place - 1]]
        sequences.append(
            TrainSequence(
                token_ids=[rng.randrange(vocab_size) for _ in range(length)],
                loss_mask=mask,
                behaviour_logprobs=[0.0] * length,
                token_rewards=[0.0] * (length - 1) + [float(rng.random() < 0.5)],
                staleness=0,
                trajectory_id=f"run/{index // 8}/{index}",
                fields={"advantages": advantage * torch.tensor(mask)},
                turns=tuple(
                    TurnSpan(number, start, end, f"state {rng.randrange(4)}", StateValue(mean=rng.random(), samples=4))
                    for number, (start, end) in enumerate(zip(starts, ends, strict=True))
                ),
            )
        )
    return sequences


def matmul_ceiling(dtype: torch.dtype, repeat: int) -> float:
    """Return the GFLOP/s of one large product, by the faster of PyTorch's two libraries."""
    size = 1024
    left, right = torch.randn(size, size, dtype=dtype), torch.randn(size, size, dtype=dtype)

    def product() -> None:
        for _ in range(10):
            left @ right

    plain = best(product, repeat + 2)
    with fast_float32_matmul("cpu"):
        routed = best(product, repeat + 2)
    return 10 * 2 * size**3 / min(plain, routed) / 1e9


def best(work: Callable[[], object], repeat: int) -> float:
    """Return the seconds of the fastest of `repeat` runs after a warm-up."""
    work()
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _engine(model: PolicyModel, microbatch: int, *, sampler_is_exact: bool = False) -> UpdateEngine:
    options = {"tokens_per_microbatch": microbatch, "groups_per_step": 64, "optimizer": {"learning_rate": 1e-9}}
    rl = ReinforceOptions.model_validate(options)
    return UpdateEngine(model, algorithm_of(rl), rl, sampler_is_exact=sampler_is_exact)


@torch.no_grad()
def _sampled(model: PolicyModel, sequences: list[TrainSequence]) -> list[TrainSequence]:
    """Return the sequences with the model's own log-probabilities, as from a sampler with the same weights."""
    sampled: dict[int, TrainSequence] = {}
    for batch in pack(sequences, 8192):
        rows = torch.split(model.token_logprobs(batch).logprobs, list(batch.lengths))
        for index, row in zip(batch.indices, rows, strict=True):
            sampled[index] = replace(sequences[index], behaviour_logprobs=row.tolist())
    return [sampled[index] for index in range(len(sequences))]


def _padded_loop(path: Path, sequences: list[TrainSequence], num_rows: int) -> Callable[[], None]:
    """Return the plain loop: rows padded to the longest of `num_rows`, attention masks, logits at every position."""
    model = AutoModelForCausalLM.from_pretrained(str(path))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-9)
    ordered = sorted(sequences, key=lambda sequence: len(sequence.token_ids))
    return lambda: _padded_update(
        model, optimizer, [ordered[i : i + num_rows] for i in range(0, len(ordered), num_rows)]
    )


def _padded_update(model: Any, optimizer: torch.optim.Optimizer, parts: list[list[TrainSequence]]) -> None:
    total = sum(sequence.num_trained for part in parts for sequence in part)
    for part in parts:
        ids = pad_sequence([torch.tensor(s.token_ids) for s in part], batch_first=True)
        trained = pad_sequence([torch.tensor(s.loss_mask) for s in part], batch_first=True)
        advantages = pad_sequence([s.fields["advantages"] for s in part], batch_first=True)
        old = pad_sequence([torch.tensor(s.behaviour_logprobs) for s in part], batch_first=True)
        present = pad_sequence([torch.ones(len(s.token_ids), dtype=torch.int64) for s in part], batch_first=True)
        logprobs = model(ids, attention_mask=present).logits[:, :-1].log_softmax(-1)
        chosen = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
        ratio = (chosen - old[:, 1:]).exp()
        gain = torch.minimum(ratio * advantages[:, 1:], ratio.clamp(0.8, 1.28) * advantages[:, 1:])
        (-(gain * trained[:, 1:]).sum() / total).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def _mixed_precision(
    path: Path, sequences: list[TrainSequence], num_tokens: int, repeat: int, float32_rate: float
) -> list[Row]:
    """Measure the gain in speed from bfloat16 products, and their loss of parity with a float32 sampler."""
    model = PolicyModel.from_pretrained(path, dtype=torch.bfloat16)
    updater = _engine(model, 4096)
    rate = num_tokens / best(lambda: updater.update(sequences), repeat)
    return [
        Row.of("update in bfloat16", rate, "tokens/s", baseline=float32_rate),
        Row.of("parity of bfloat16 with float32", updater.batch_parity(sequences), "nat", goal=1e-3,
               lower_is_better=True),
        Row.of("oneDNN exact in float32 on this CPU", float(onednn_is_exact()), "bool"),
    ]  # fmt: skip


def _algorithms(path: Path, sequences: list[TrainSequence], num_tokens: int, repeat: int) -> list[Row]:
    """Time an update by each algorithm that needs no second model, compared with one by GRPO, in turn."""
    rows = [
        replace(row, unit=f"pair {place // 2}").with_fields(
            **{PREFERRED: torch.full((len(row.token_ids),), float(1 - place % 2))}
        )
        for place, row in enumerate(sequences)
    ]
    rows = [replace(row, fields={PREFERRED: row.fields[PREFERRED]}) for row in rows]
    engines = {}
    for name in sorted(included("gymfleet_trainer.algorithms")):
        rl = ReinforceOptions.model_validate(
            {"algorithm": name, "tokens_per_microbatch": 16384, "optimizer": {"learning_rate": 1e-9}}
        )
        algorithm = algorithm_of(rl)
        if not algorithm.needs & {Need.REFERENCE, Need.CRITIC}:
            engines[name] = UpdateEngine(PolicyModel.from_pretrained(path), algorithm, rl, sampler_is_exact=True)
    seconds = dict.fromkeys(engines, math.inf)
    for _ in range(repeat + 2):
        for name, engine in engines.items():
            given = rows if isinstance(engine.algorithm, Preference) else [replace(row, unit=None) for row in rows]
            started = time.perf_counter()
            engine.update(given)
            seconds[name] = min(seconds[name], time.perf_counter() - started)
    rates = {name: num_tokens / spent for name, spent in seconds.items()}
    return [
        Row.of(f"update by {name}", rate, "tokens/s", baseline=rates["grpo"], goal=round(0.97 * rates["grpo"]))
        for name, rate in rates.items()
        if name != "grpo"
    ]


if __name__ == "__main__":
    main()
