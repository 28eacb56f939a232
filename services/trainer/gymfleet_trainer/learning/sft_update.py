"""The supervised warm start on demonstrations."""

import math
import random
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import structlog
from torch import Tensor

from gymfleet_trainer.learning.losses import GlobalCounts, sft_loss, token_weights
from gymfleet_trainer.learning.metrics import SftMetrics, Totals
from gymfleet_trainer.learning.options import SupervisedOptions
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack
from gymfleet_trainer.model.microbatches import Sums
from gymfleet_trainer.model.optimizer import build_optimizer
from gymfleet_trainer.model.policy_model import PolicyModel

log = structlog.get_logger()

TOKENS_PER_MICROBATCH = 4096
_HARDNESS: Final[Mapping[str, Callable[[TrainSequence], float]]] = {
    "length": lambda sequence: len(sequence.token_ids),
    "turns": lambda sequence: sum(now and not before for before, now in pairwise([False, *sequence.loss_mask])),
    "reward": lambda sequence: -sequence.total_reward,
}


class SftUpdater:
    """Maximise the likelihood of the tokens under `loss_mask`, in epochs over shuffled demonstrations."""

    def __init__(self, model: PolicyModel, section: SupervisedOptions, *, num_tokens: int) -> None:
        """Take the policy, which is trained in place.

        `num_tokens` is the length of all demonstrations together: it determines where a decaying schedule ends.
        """
        self.model = model
        self._curriculum = section.curriculum
        total_steps = section.epochs * _num_parts(num_tokens, section.tokens_per_batch)
        if section.optimizer.warmup_steps >= total_steps > 0:
            log.warning(
                "sft.only_warms_up",
                warmup_steps=section.optimizer.warmup_steps,
                updates=total_steps,
                remedy="the learning rate does not reach its peak: give fewer optimizer.warmup_steps, or more epochs",
            )
        self.optimizer = build_optimizer(model, section.optimizer, total_steps)

    def sft_epoch(self, sequences: list[TrainSequence], tokens_per_batch: int, rng: random.Random) -> SftMetrics:
        """Make one pass, with about one optimiser update per `tokens_per_batch` tokens.

        The order is drawn from `rng`, or goes from easy to hard by the curriculum.
        """
        started = time.perf_counter()
        order = list(sequences)
        rng.shuffle(order)
        if self._curriculum is not None:
            order.sort(key=_HARDNESS[self._curriculum])  # those that are as hard stay in the order drawn
        totals = Totals()
        for part in _parts(order, tokens_per_batch):
            self._update_part(part, totals)
        return SftMetrics(
            loss=totals.mean("loss", "trained_tokens"),
            grad_norm=totals.mean("grad_norm", "updates"),
            learning_rate=totals.learning_rate,
            num_tokens=int(totals.get("tokens")),
            num_trained_tokens=int(totals.get("trained_tokens")),
            num_updates=int(totals.get("updates")),
            num_nonfinite=int(totals.get("nonfinite")),
            epoch_s=time.perf_counter() - started,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the policy's weights."""
        return {"optimizer": self.optimizer.state_dict(), "total_steps": self.optimizer.total_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was taken."""
        self.optimizer.load_state_dict(state["optimizer"])
        # With a budget of tokens, no epoch is quite as long as the first, from which the schedule was made.
        self.optimizer.total_steps = state["total_steps"]

    def _update_part(self, part: list[TrainSequence], totals: Totals) -> None:
        counts = GlobalCounts.of(sequence.num_trained for sequence in part)
        if counts.tokens == 0:
            self.optimizer.num_missed += 1
            return
        device = self.model.device

        def loss_of(batch: PackedBatch) -> tuple[Tensor, Sums]:
            weight = token_weights(batch.loss_mask, batch.cu_seqlens, "token_mean", counts, self.model.dtype)
            loss = sft_loss(self.model.token_logprobs(batch).logprobs, weight)
            summed = loss.detach() * counts.tokens
            return loss, {"loss": summed, "tokens": batch.num_tokens, "trained_tokens": len(batch.trained)}

        executor = self.model.executor(self.optimizer.parameters)
        packed = pack(
            [s for s in part if s.num_trained],
            TOKENS_PER_MICROBATCH,
            multiple_of=executor.width,
            dtype=self.model.dtype,
        )
        batches = [batch.to(device) for batch in packed]
        for sums in executor.accumulate(loss_of, batches, self.optimizer.parameters):
            totals.add(sums)
        learning_rate = self.optimizer.learning_rate
        totals.add_step(self.optimizer.step(), learning_rate)


def _parts(order: list[TrainSequence], tokens_per_batch: int) -> list[list[TrainSequence]]:
    """Divide consecutive sequences into nearly equal shares of about `tokens_per_batch` tokens.

    There are as many shares as the schedule expects, whatever the order; greedy filling would need a few more. Around a
    sequence that is longer than a share, some are empty, and count as missed.
    """
    total = sum(len(sequence.token_ids) for sequence in order)
    num_parts = _num_parts(total, tokens_per_batch)
    parts: list[list[TrainSequence]] = [[] for _ in range(num_parts)]
    before = 0
    for sequence in order:
        length = len(sequence.token_ids)
        parts[(2 * before + length) * num_parts // (2 * total)].append(sequence)
        before += length
    return parts


def _num_parts(num_tokens: int, tokens_per_batch: int) -> int:
    return math.ceil(num_tokens / tokens_per_batch)
