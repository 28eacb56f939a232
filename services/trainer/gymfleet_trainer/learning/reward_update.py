"""The training of a reward model, or of a judge, which starts from the policy and leaves the policy unchanged."""

import random
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from gymfleet_trainer.learning.losses import sft_loss
from gymfleet_trainer.learning.metrics import Totals
from gymfleet_trainer.learning.options import BradleyTerryOptions, RewardModelOptions
from gymfleet_trainer.learning.reward_losses import bradley_terry_loss, step_loss
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack
from gymfleet_trainer.model.judge_model import JudgeModel
from gymfleet_trainer.model.microbatches import Sums
from gymfleet_trainer.model.optimizer import build_optimizer, masters_of
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.model.reward_head import RewardModel

LABELS: Final = "labels"
"""The field of a row with the target of each turn's number, where it is read."""


class RewardUpdater:
    """Train a reward model in epochs over rows, whose `loss_mask` marks where a number is read.

    The two rows of a pair are neighbours and name the same `unit`, the better one first. A row of a process reward
    model stands alone, with the field `labels`. A judge is trained in place, without a copy: its rows are questions,
    and the tokens of the verdict are read.

    Args:
        policy: the model to start from, with a head of 0; or a judge.
        options: how the model is trained.
        previous: where `save_pretrained` wrote a reward model with the same body and head, to start from instead.

    Raises:
        OSError, ValueError: there is no such model.
    """

    def __init__(self, policy: PolicyModel, options: RewardModelOptions, previous: Path | None = None) -> None:
        self.options = options
        self.model: RewardModel | JudgeModel
        if isinstance(policy, JudgeModel):
            self.model = policy
        else:
            self.model = RewardModel(policy, options.reads, masters_of(options.optimizer))
            if previous is not None:
                self.model.load_pretrained(previous)
        self._executor = policy.executor(list(self.model.parameters()))
        self.optimizer = build_optimizer(self.model, options.optimizer, 1)
        self._centring = options.centring if isinstance(options, BradleyTerryOptions) else None

    def epoch(self, rows: Sequence[TrainSequence], rng: random.Random) -> dict[str, float]:
        """Make one pass over the rows, in an order drawn from `rng`."""
        started = time.perf_counter()
        units = [list(unit) for _, unit in groupby(rows, key=_unit)]
        num_parts = -(-len(units) // self.options.per_batch)
        self.optimizer.total_steps = self.options.epochs * num_parts
        rng.shuffle(units)
        totals = Totals()
        for part in range(num_parts):
            self._update([row for unit in units[part::num_parts] for row in unit], totals)
        return totals.reported() | {
            "loss": totals.mean("loss", "counted"),
            "grad_norm": totals.mean("grad_norm", "updates"),
            "learning_rate": totals.learning_rate,
            "num_tokens": int(totals.get("tokens")),
            "num_updates": int(totals.get("updates")),
            "num_nonfinite": int(totals.get("nonfinite")),
            "epoch_s": time.perf_counter() - started,
        }

    def numbers(self, rows: Sequence[TrainSequence]) -> list[list[float]]:
        """Return each row's numbers, in the order of its tokens."""
        device = self.model.device
        found: list[list[float]] = [[] for _ in rows]

        def work(batch: PackedBatch) -> list[list[float]]:
            with torch.no_grad():
                numbers = self.model.numbers(batch.to(device)).cpu()
            counts = [int(part.sum()) for part in torch.split(batch.loss_mask, list(batch.lengths))]
            return [part.tolist() for part in torch.split(numbers, counts)]

        batches = self._pack(rows)
        for batch, parts in zip(batches, self._executor.map(work, batches), strict=True):
            for place, part in zip(batch.indices, parts, strict=True):
                found[place] = part
        return found

    def save_pretrained(self, directory: Path) -> None:
        """Write config and safetensors."""
        self.model.save_pretrained(directory)

    def state_dict(self) -> dict[str, Any]:
        """Return everything, including the model's weights, which are not part of the policy's."""
        return {"optimizer": self.optimizer.state_dict(), "model": self.model.weights()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was taken."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.model.load_weights(state["model"])

    def _update(self, rows: list[TrainSequence], totals: Totals) -> None:
        counted = sum(row.num_trained for row in rows) if self._centring is None else len(rows) // 2

        def loss_of(batch: PackedBatch) -> tuple[Tensor, Sums]:
            loss, sums = self._loss(self.model.numbers(batch), batch, counted)
            return loss, {"loss": loss.detach() * counted, "tokens": batch.num_tokens, **sums}

        device = self.model.device
        batches = [batch.to(device) for batch in self._pack(rows)]
        for sums in self._executor.accumulate(loss_of, batches, self.optimizer.parameters):
            totals.add(sums)
        totals.add({"counted": counted})
        learning_rate = self.optimizer.learning_rate
        totals.add_step(self.optimizer.step(), learning_rate)

    def _loss(self, numbers: Tensor, batch: PackedBatch, counted: int) -> tuple[Tensor, Sums]:
        if isinstance(self.model, JudgeModel):
            return _of_verdicts(numbers, counted)
        if self._centring is None:
            return _of_turns(numbers, batch, counted)
        return _of_pairs(numbers, batch, counted, self._centring)

    def _pack(self, rows: Sequence[TrainSequence]) -> list[PackedBatch]:
        width = self._executor.width
        return pack(rows, self.options.tokens_per_microbatch, multiple_of=width, dtype=self.model.dtype)


def _of_pairs(numbers: Tensor, batch: PackedBatch, num_pairs: int, centring: float) -> tuple[Tensor, Sums]:
    places = torch.tensor(list(batch.places_by_unit.values()), device=numbers.device)
    chosen, rejected = numbers[places[:, 0]], numbers[places[:, 1]]
    loss = bradley_terry_loss(chosen, rejected, centring=centring, num_pairs=num_pairs)
    with torch.no_grad():
        right = (chosen > rejected).sum() + 0.5 * (chosen == rejected).sum()
        middle = ((chosen + rejected) / 2).sum()
    count = len(places)
    return loss, {"sum/accuracy": right, "count/accuracy": count, "sum/mean": middle, "count/mean": count}


def _of_turns(numbers: Tensor, batch: PackedBatch, num_turns: int) -> tuple[Tensor, Sums]:
    labels = batch.fields[LABELS][batch.trained].to(numbers.dtype)
    loss = step_loss(numbers, labels, num_turns=num_turns)
    right = ((numbers.detach() > 0) == (labels > 0.5)).sum()
    return loss, {"sum/accuracy": right, "count/accuracy": len(labels)}


def _of_verdicts(logprobs: Tensor, num_tokens: int) -> tuple[Tensor, Sums]:
    return sft_loss(logprobs, torch.full_like(logprobs, 1 / num_tokens)), {}


def _unit(row: TrainSequence) -> object:
    return row.unit or id(row)
