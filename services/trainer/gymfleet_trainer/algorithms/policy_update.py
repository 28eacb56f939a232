"""Group-relative policy optimisation (GRPO and its kin) over packed micro-batches."""

import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import torch
from gymfleet_contracts.recipe import RlSection
from torch import Tensor, nn

from gymfleet_trainer.algorithms.advantages import grpo_advantages
from gymfleet_trainer.algorithms.kl import kl_estimate
from gymfleet_trainer.algorithms.losses import (
    GlobalCounts,
    clipped_policy_loss,
    token_weights,
    truncated_importance_weight,
    weighted_mean,
)
from gymfleet_trainer.algorithms.update_metrics import Sums, Totals, UpdateMetrics
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence, pack
from gymfleet_trainer.model.microbatches import MicrobatchExecutor
from gymfleet_trainer.model.optimizer import build_optimizer
from gymfleet_trainer.model.policy_model import PolicyModel

Logprobs = dict[int, Tensor]
"""Index of a sequence to its (L,) log-probabilities on the CPU."""


class UpdaterOptions(TypedDict, total=False):
    """The keyword arguments of every updater; `PolicyUpdater` says what they mean."""

    seed: int
    temperature: float
    reference: PolicyModel | None
    sampler_is_exact: bool


class PolicyUpdater:
    """Train one policy on batches of trajectories, as the recipe's `[rl]` says.

    Sequences whose `advantages` are empty get those of GRPO, from their token rewards and their groups. Training is
    deterministic: on the same hardware with the same number of threads, the same seed, weights and batches give the
    same weights, also when interrupted by `state_dict` and `load_state_dict`.
    """

    def __init__(
        self,
        model: PolicyModel,
        rl: RlSection,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        reference: PolicyModel | None = None,
        sampler_is_exact: bool = False,
    ) -> None:
        """Take the policy to train.

        Args:
            model: the policy, which is trained in place.
            rl: the recipe's section.
            seed: the seed of the split into updates.
            temperature: the sampling temperature.
            reference: the policy at the start of reinforcement learning; copied from `model` when the recipe needs
                one and none is given. A resumed run must give it.
            sampler_is_exact: the sampler computes as exactly as the trainer (both float32), so that fresh sequences
                carry their old log-probabilities already and they need not be computed again.
        """
        self.model = model
        self.rl = rl
        self.temperature = temperature
        self.sampler_is_exact = sampler_is_exact
        self.optimizer = build_optimizer(model, rl.optimizer, rl.steps * rl.updates_per_step * rl.epochs_per_step)
        self.reference = reference if reference is not None or rl.kl.coefficient == 0 else model.frozen_copy()
        self._rng = random.Random(seed)

    def update(self, sequences: list[TrainSequence]) -> UpdateMetrics:
        """Train on one batch: `epochs_per_step` passes of up to `updates_per_step` optimiser updates each.

        Raises:
            ValueError: a group has only one member, and hence no baseline.
        """
        started = time.perf_counter()
        epochs = [self._split(sequences) for _ in range(self.rl.epochs_per_step)]
        prepared = self._with_advantages(sequences)
        old_logprobs = self._old_logprobs(prepared, epochs)
        totals = Totals()
        for number, part in enumerate(part for parts in epochs for part in parts):
            self._update_part(prepared, part, old_logprobs, totals, weights_untouched=number == 0)
        trained = sum(self._has_gradient(sequence) for sequence in prepared)
        return _metrics(totals, len(sequences), trained, time.perf_counter() - started)

    def batch_parity(self, sequences: Sequence[TrainSequence]) -> float:
        """Return the mean |trainer - sampler| log-probability over tokens that the model wrote; NaN without any."""
        differences = [
            (logprobs - self._floats(sequences[index].behaviour_logprobs))[_mask(sequences[index])].abs()
            for index, logprobs in self._logprobs(self.model, sequences, range(len(sequences))).items()
        ]
        together = torch.cat(differences) if differences else torch.empty(0)
        return float(together.mean()) if together.numel() else math.nan

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the weights of policy and reference, which are saved as models."""
        return {"optimizer": self.optimizer.state_dict(), "rng": self._rng.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from where `state_dict` was taken, bit for bit, given the same weights."""
        self.optimizer.load_state_dict(state["optimizer"])
        version, internal, gauss = state["rng"]
        self._rng.setstate((version, tuple(internal), gauss))

    def _split(self, sequences: Sequence[TrainSequence]) -> list[list[int]]:
        """Return the indices of each update's sequences: whole groups in random order, in nearly equal numbers."""
        groups: dict[str, list[int]] = {}
        for index, sequence in enumerate(sequences):
            groups.setdefault(sequence.group_id, []).append(index)
        names = sorted(groups)
        self._rng.shuffle(names)
        num_parts = min(self.rl.updates_per_step, len(names))
        return [[i for name in names[part::num_parts] for i in groups[name]] for part in range(num_parts)]

    def _with_advantages(self, sequences: list[TrainSequence]) -> list[TrainSequence]:
        """Fill in GRPO's advantages, unless every sequence already has its own."""
        if all(sequence.advantages for sequence in sequences):
            return sequences
        returns = self._floats([sum(rewards) for rewards in self._penalised_rewards(sequences)])
        groups = [sequence.group_id for sequence in sequences]
        advantages = grpo_advantages(returns, groups, self.rl.normalise_by_std).tolist()
        return [s.with_advantage(a) for s, a in zip(sequences, advantages, strict=True)]

    def _penalised_rewards(self, sequences: Sequence[TrainSequence]) -> list[list[float]]:
        """Return token rewards, minus the KL estimate if the recipe puts it into the reward."""
        if self.reference is None or self.rl.kl.placement != "reward":
            return [sequence.token_rewards for sequence in sequences]
        everything = range(len(sequences))
        policy = self._logprobs(self.model, sequences, everything)
        reference = self._logprobs(self.reference, sequences, everything)
        penalised = []
        for index, sequence in enumerate(sequences):
            kl = kl_estimate(policy[index], reference[index], self.rl.kl.estimator) * _mask(sequence)
            penalised.append((self._floats(sequence.token_rewards) - self.rl.kl.coefficient * kl).tolist())
        return penalised

    def _old_logprobs(self, sequences: Sequence[TrainSequence], epochs: list[list[list[int]]]) -> Logprobs:
        """Return log-probabilities under the weights before the batch, where they are not available for free.

        The first update of the batch runs on those weights itself, and an exact sampler has already provided those of
        fresh sequences.
        """
        needed = {index for index, sequence in enumerate(sequences) if self._has_gradient(sequence)}
        if len(epochs) == 1 and epochs[0]:
            needed -= set(epochs[0][0])
        known: Logprobs = {}
        if self.sampler_is_exact:
            fresh = {index for index in needed if sequences[index].staleness == 0}
            known = {index: self._floats(sequences[index].behaviour_logprobs) for index in sorted(fresh)}
            needed -= fresh
        return known | self._logprobs(self.model, sequences, sorted(needed))

    def _has_gradient(self, sequence: TrainSequence) -> bool:
        """Return whether to compute it: without KL loss and entropy bonus, zero advantage gives no gradient."""
        everything_counts = self.rl.entropy_coefficient > 0 or self._kl_in_loss
        return sequence.num_trained > 0 and (everything_counts or any(sequence.advantages))

    @property
    def _kl_in_loss(self) -> bool:
        return self.rl.kl.coefficient > 0 and self.rl.kl.placement == "loss"

    def _logprobs(self, model: PolicyModel, sequences: Sequence[TrainSequence], chosen: Iterable[int]) -> Logprobs:
        """Return the log-probabilities of the chosen sequences, without gradients."""
        chosen = list(chosen)

        def work(batch: PackedBatch) -> list[Tensor]:
            with torch.no_grad():
                logprobs = model.token_logprobs(batch.to(model.device), temperature=self.temperature).logprobs.cpu()
            return list(torch.split(logprobs, list(batch.lengths)))

        executor = self._lanes
        batches = self._pack([sequences[i] for i in chosen])
        return {
            chosen[place]: part
            for batch, parts in zip(batches, executor.map(work, batches), strict=True)
            for place, part in zip(batch.indices, parts, strict=True)
        }

    @property
    def _lanes(self) -> MicrobatchExecutor:
        return self.model.executor(self.optimizer.parameters)

    def _pack(self, sequences: Sequence[TrainSequence]) -> list[PackedBatch]:
        width = self._lanes.width
        return pack(sequences, self.rl.tokens_per_microbatch, multiple_of=width, dtype=self.model.dtype)

    def _floats(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self.model.dtype)

    def _update_part(
        self,
        sequences: Sequence[TrainSequence],
        part: Sequence[int],
        old_logprobs: Logprobs,
        totals: Totals,
        *,
        weights_untouched: bool,
    ) -> None:
        """Make one optimiser update, unless nothing in the part has a gradient. Counts are those of the whole part."""
        counts = global_counts([sequences[index] for index in part])
        chosen = [index for index in part if self._has_gradient(sequences[index])]
        if not chosen:
            return
        fresh = weights_untouched and all(sequences[index].staleness == 0 for index in chosen)
        executor = self._lanes
        batches = [
            self._complete(batch, [chosen[place] for place in batch.indices], old_logprobs).to(self.model.device)
            for batch in self._pack([sequences[index] for index in chosen])
        ]

        def loss_of(batch: PackedBatch) -> tuple[Tensor, Sums]:
            return self._loss(batch, counts, measure_parity=fresh)

        for sums in executor.accumulate(loss_of, batches, self._trained_parameters()):
            totals.add(sums)
        self._step(totals)

    def _trained_parameters(self) -> list[nn.Parameter]:
        return self.optimizer.parameters

    def _complete(self, batch: PackedBatch, indices: list[int], old_logprobs: Logprobs) -> PackedBatch:
        """Add what was computed before the update; without it the batch is the first to use its weights."""
        if not all(index in old_logprobs for index in indices):
            return batch
        return replace(batch, old_logprobs=torch.cat([old_logprobs[index] for index in indices]))

    def _step(self, totals: Totals) -> None:
        learning_rate = self.optimizer.learning_rate
        totals.add_step(self.optimizer.step(), learning_rate)

    def _loss(self, batch: PackedBatch, counts: GlobalCounts, *, measure_parity: bool) -> tuple[Tensor, Sums]:
        """Return one micro-batch's share of the loss, () float with grad, and what it adds to the totals."""
        weight = token_weights(batch.loss_mask, batch.cu_seqlens, self.rl.aggregation, counts, self.model.dtype)
        output = self.model.token_logprobs(batch, temperature=self.temperature, with_entropy=True)
        loss, sums = self._policy_loss(batch, output.logprobs, weight)
        if output.entropy is not None:
            sums["entropy"] = output.entropy.detach().sum()
            if self.rl.entropy_coefficient > 0:
                loss = loss - self.rl.entropy_coefficient * weighted_mean(output.entropy, weight)
        if self.reference is not None and self._kl_in_loss:
            with torch.no_grad():
                reference = self.reference.token_logprobs(batch, temperature=self.temperature).logprobs
            kl = kl_estimate(output.logprobs, reference, self.rl.kl.estimator)
            loss = loss + self.rl.kl.coefficient * weighted_mean(kl, weight)
            sums |= {"reference_kl": kl.detach().sum(), "reference_tokens": len(batch.trained)}
        if measure_parity:
            difference = (output.logprobs.detach() - batch.behaviour_logprobs)[batch.trained]
            sums |= {"parity": difference.abs().sum(), "parity_tokens": len(batch.trained)}
        return loss, sums | {
            "loss": loss.detach(),
            "trained_tokens": len(batch.trained),
            "tokens": batch.num_tokens,
        }

    def _policy_loss(self, batch: PackedBatch, logprobs: Tensor, weight: Tensor) -> tuple[Tensor, Sums]:
        old = batch.old_logprobs if batch.old_logprobs is not None else logprobs.detach()
        importance = truncated_importance_weight(old, batch.behaviour_logprobs, self.rl.importance_cap)
        policy = clipped_policy_loss(
            logprobs,
            old,
            batch.advantages,
            weight,
            clip_low=self.rl.clip_low,
            clip_high=self.rl.clip_high,
            dual_clip=self.rl.dual_clip,
            importance_weight=importance,
        )
        return policy.loss, {
            "clipped": policy.clipped,
            "dual_clipped": policy.dual_clipped,
            "approx_kl": policy.approx_kl,
            "importance": importance[batch.trained].sum(),
            "ratio_max": policy.ratio_max,
        }


def global_counts(sequences: Iterable[TrainSequence]) -> GlobalCounts:
    """Return the counts of all sequences of an update, including those without a gradient."""
    trained = [sequence.num_trained for sequence in sequences]
    return GlobalCounts(tokens=sum(trained), sequences=sum(number > 0 for number in trained))


def _mask(sequence: TrainSequence) -> Tensor:
    """Return the (L,) bool mask; the first token is never trained."""
    mask = torch.tensor(sequence.loss_mask)
    mask[0] = False
    return mask


def _metrics(totals: Totals, num_sequences: int, num_trained: int, update_s: float) -> UpdateMetrics:
    return UpdateMetrics(
        loss=totals.mean("loss", "updates"),
        grad_norm=totals.mean("grad_norm", "updates"),
        learning_rate=totals.learning_rate,
        entropy=totals.mean("entropy", "trained_tokens"),
        clip_fraction=totals.mean("clipped", "trained_tokens"),
        dual_clip_fraction=totals.mean("dual_clipped", "trained_tokens"),
        approx_kl=totals.mean("approx_kl", "trained_tokens"),
        ratio_max=totals.ratio_max,
        reference_kl=totals.mean("reference_kl", "reference_tokens"),
        parity=totals.mean("parity", "parity_tokens"),
        importance_mean=totals.mean("importance", "trained_tokens"),
        value_loss=totals.mean("value_loss", "value_updates"),
        value_grad_norm=totals.mean("value_grad_norm", "value_updates"),
        num_sequences=num_sequences,
        num_trained_sequences=num_trained,
        num_tokens=int(totals.get("tokens")),
        num_trained_tokens=int(totals.get("trained_tokens")),
        num_updates=int(totals.get("updates")),
        num_nonfinite=int(totals.get("nonfinite")),
        update_s=update_s,
    )
