"""The speed of SFT and DPO on a CPU, compared with TRL with the same model, data, optimiser and threads.

`python -m benchmarks.bench_trl [--smoke] [--trl PYTHON]`. `--trl` is the Python of an environment with TRL, made for
example by `python -m venv .venv-trl && .venv-trl/bin/pip install trl`; without it only ours is measured. TRL's fastest
setting counts, out of several micro-batch sizes and, for SFT, padded rows sorted by length and packed rows. Both see
the same rows in the same updates, so that the losses can be compared.

The data is like an agent's: episodes of an environment's expert in the react format, whose prompts begin with the
environment's instructions; and pairs of the expert's reply at one turn and a reply that it gave elsewhere.
"""

import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from gymfleet_contracts.conversation import Message
from gymfleet_contracts.formats.react import React
from gymfleet_contracts.recipe_sections import ScratchModel
from gymfleet_contracts.reply_format import FormatOptions
from gymfleet_envs.textcraft.environment import TextCraft
from gymfleet_kit.chat.tokens import ChatTokens
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

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record

PEER: Final = Path(__file__).parent / "peers" / "trl_trainers.py"
OPTIMIZER: Final = OptimizerOptions(learning_rate=1e-3, betas=(0.9, 0.95), max_grad_norm=1.0)
MICROBATCHES: Final = (2, 4, 8, 16, 32)
"""Rows or pairs per micro-batch of TRL."""
SIZES: Final = {
    "updates": Size(8, smoke=2, help="the first one is a warm-up"),
    "per_update": Size(32, smoke=2, help="episodes or pairs of an update"),
}

Tokens = dict[str, list[int]]
Messages: TypeAlias = list[Message]


class Done(NamedTuple):
    """The results of some updates."""

    losses: list[float]
    seconds: list[float]


def main() -> None:
    """Measure and record."""
    command = BenchmarkCommand(__doc__, SIZES)
    command.add_argument("--trl", help="Python of an environment with TRL")
    options = command.options()
    transformers_logging.disable_progress_bar()
    played = demonstrations(options.updates * options.per_update)
    texts = [message.content for messages in played for message in messages]
    with tempfile.TemporaryDirectory() as directory:
        path = build_scratch_model(texts, ScratchModel(vocab_size=1024), directory, 0, max_position=4096)
        rows = measure(path, played, options.per_update, options.trl)
    record("trl", rows, options)


def measure(path: Path, played: Sequence[Messages], per_update: int, trl: str | None) -> list[Row]:
    """Return all figures, for the model in `path`."""
    updates, chat = len(played) // per_update, ChatTokens.load(path)
    sizes = [size for size in MICROBATCHES if per_update % size == 0]
    rows: list[Row] = []
    for name, data, update, settings in (
        ("SFT", sft_rows(chat, played, per_update), sft_update(path, updates), (False, True)),
        ("DPO", dpo_pairs(chat, played), dpo_update(path, updates), (False,)),
    ):
        lengths = [_num_tokens(row) for row in data]
        rows.append(Row.of(f"{name}: tokens of the median row, both sides of a pair", median(lengths), "tokens"))
        num_tokens = sum(lengths[per_update:])
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
    """Return our rate, those of TRL's settings, and the largest difference between the losses."""
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


def demonstrations(count: int) -> list[Messages]:
    """Return episodes of TextCraft's expert, as a policy would see them and would have replied."""
    source, react = TextCraft.task_source(None), React(FormatOptions())
    rules = f"{TextCraft.instructions}\n\n{react.instructions}"
    found: list[Messages] = []
    index = 0
    while len(found) < count:
        environment = TextCraft()
        shown = environment.reset(source.by_index("train", source.default_level, index).data, 0)
        index += 1
        messages = [Message(role="user", content=f"{rules}\n\n{shown}")]
        while (move := environment.expert()) is not None:
            outcome = environment.step(move.action)
            messages.append(Message(role="assistant", content=react.render(move.thought, move.action)))
            if outcome.terminated:
                break
            messages.append(Message(role="user", content=outcome.observation))
        if messages[-1].role == "assistant":
            found.append(messages)
    return found


def sft_rows(chat: ChatTokens, played: Sequence[Messages], per_update: int) -> list[Tokens]:
    """Return the episodes' rows; those of an update are sorted by length, which suits TRL's padding best."""
    rows: list[Tokens] = []
    for messages in played:
        ids, labels = [], []
        for piece in chat.pieces(messages):
            ids += [*piece.prompt, *piece.reply]
            labels += [*[-100] * len(piece.prompt), *piece.reply]
        rows.append({"input_ids": ids, "labels": labels})
    updates = [rows[start : start + per_update] for start in range(0, len(rows), per_update)]
    return [row for update in updates for row in sorted(update, key=lambda row: len(row["input_ids"]))]


def dpo_pairs(chat: ChatTokens, played: Sequence[Messages], *, seed: int = 0) -> list[Tokens]:
    """Return a turn of each episode as a pair: the expert's reply, and its reply at another turn."""
    rng = random.Random(seed)
    pieces = [list(chat.pieces(messages)) for messages in played]
    replies = sorted({piece.reply for own in pieces for piece in own})
    pairs: list[Tokens] = []
    for own in pieces:
        place = rng.randrange(len(own))
        prompt = [token for piece in own[:place] for token in (*piece.prompt, *piece.reply)] + list(own[place].prompt)
        chosen = own[place].reply
        rejected = rng.choice([reply for reply in replies if reply != chosen])
        pairs.append({"prompt_ids": prompt, "chosen_ids": list(chosen), "rejected_ids": list(rejected)})
    return pairs


def _run(rows: list[Tokens], per_update: int, update: Callable[[list[Tokens]], float]) -> Done:
    """Return the loss and the seconds of each of our updates."""
    losses, seconds = [], []
    for start in range(0, len(rows), per_update):
        started = time.perf_counter()
        losses.append(update(rows[start : start + per_update]))
        seconds.append(time.perf_counter() - started)
    return Done(losses, seconds)


def sft_update(path: Path, updates: int) -> Callable[[list[Tokens]], float]:
    """Return our SFT update."""
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
    """Return our DPO update."""
    section = UpdateOptions(steps=updates, optimizer=OPTIMIZER)
    engine = UpdateEngine(PolicyModel.from_pretrained(path), Dpo(DpoOptions()), section)

    def update(pairs: list[Tokens]) -> float:
        rows = [row for number, pair in enumerate(pairs) for row in rows_of(pair, number)]
        return engine.update(rows)["loss"]

    return update


def rows_of(pair: Tokens, number: int) -> list[TrainSequence]:
    """Return the rows of a pair."""
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
    """Return the same of TRL's updates."""
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
