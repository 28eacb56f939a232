"""The engine of an update: it packs rows, differentiates, clips, steps the optimisers and keeps their state.

It knows no algorithm: the algorithm defines the rows, the worth of their tokens, and the loss.
"""

import copy
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gymfleet_trainer.learning.algorithm import (
    OLD_LOGPROBS,
    Algorithm,
    Models,
    Need,
    TokenOutputs,
    Trained,
)
from gymfleet_trainer.learning.losses import GlobalCounts
from gymfleet_trainer.learning.metrics import Totals
from gymfleet_trainer.learning.options import UpdateOptions
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.microbatches import MicrobatchExecutor, Sums
from gymfleet_trainer.model.optimizer import PolicyOptimizer, build_optimizer, masters_of
from gymfleet_trainer.model.policy_model import PolicyModel, Reference
from gymfleet_trainer.model.temperatures import pack_by_temperature

Rows = dict[int, Tensor]
"""Maps the index of a row to its (L,) values on the CPU."""


class UpdateEngine(Models):
    """Train one policy on batches of rows with an algorithm.

    Training is deterministic: on the same hardware with the same number of threads, the same seed, weights and
    batches give the same weights, even when interrupted by `state_dict` and `load_state_dict`.
    """

    def __init__(
        self,
        model: PolicyModel,
        algorithm: Algorithm[Any],
        section: UpdateOptions,
        *,
        seed: int = 0,
        temperature: float = 1.0,
        reference: Reference | None = None,
        sampler_is_exact: bool = False,
        before_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the policy to train.

        Args:
            model: the policy, which is trained in place.
            algorithm: defines the meaning of the rows.
            section: how a batch is divided into updates and micro-batches, and how the policy is optimised.
            seed: the seed of the split into updates.
            temperature: the sampling temperature of rows that name none.
            reference: the policy at the start of the stage, or at its last refresh; copied from `model` when the
                algorithm needs one and none is given. A resumed run must give it.
            sampler_is_exact: the sampler computes as exactly as the trainer (both float32), so that fresh rows already
                carry their old log-probabilities, which need not be computed again.
            before_change: called before tensors change that `state_dict` returned, or weights; it may wait.
        """
        self.model = model
        self.algorithm = algorithm
        self.section = section
        self.temperature = temperature
        self.sampler_is_exact = sampler_is_exact
        self._before_change = before_change
        self.waited_s = 0.0
        """Seconds that the last batch has waited in `before_change`."""
        self.num_batches = 0
        """Batches trained on so far."""
        self._planned = section.updates_per_step * section.epochs_per_step
        """Updates of a batch, if all of its parts have a gradient."""
        num_updates = section.steps * self._planned
        num_ahead = sum(Trained.POLICY not in algorithm.trains(step) for step in range(section.steps))
        self.optimizer = build_optimizer(model, section.optimizer, num_updates - num_ahead * self._planned)
        copied = reference is None and Need.REFERENCE in algorithm.needs
        self.reference: Reference | None = model.as_reference() if copied else reference
        self.reference_is_refreshed = False
        """Whether the reference has changed since the start of the stage, so that a checkpoint must contain it."""
        self.critic: ValueModel | None = None
        self.critic_optimizer: PolicyOptimizer | None = None
        if Need.CRITIC in algorithm.needs:
            self.critic = ValueModel(model, masters_of(algorithm.critic_optimizer))
            self.critic_optimizer = build_optimizer(self.critic, algorithm.critic_optimizer, num_updates)
        self._rng = random.Random(seed)

    def update(self, rows: list[TrainSequence]) -> dict[str, float]:
        """Train on one batch: `epochs_per_step` passes of up to `updates_per_step` optimiser updates each.

        Returns the metrics of the update: those of the engine, and those that the algorithm's losses reported.
        Raises ValueError for rows that the algorithm cannot learn from.
        """
        started, self.waited_s = time.perf_counter(), 0.0
        epochs = [self._split(rows) for _ in range(self.section.epochs_per_step)]
        prepared = self._with_old_logprobs(self._prepared(rows), epochs)
        totals = Totals()
        for number, part in enumerate(part for parts in epochs for part in parts):
            self._update_part(prepared, part, totals, weights_untouched=number == 0)
        self._count_missed(totals)
        reported = totals.reported()
        self.algorithm.after_batch(self.num_batches, self, reported)
        self.num_batches += 1
        if self.reference is not None and self.algorithm.refreshes_reference(self.num_batches):
            self._wait()  # also where no update was made
            self.reference.copy_weights(self.model)
            self.reference_is_refreshed = True
        return reported | {
            "grad_norm": totals.mean("grad_norm", "updates"),
            "learning_rate": totals.learning_rate,
            "num_sequences": len(rows),
            "num_trained_sequences": sum(map(self.algorithm.has_gradient, prepared)),
            "num_tokens": int(totals.get("tokens")),
            "num_shared_tokens": int(totals.get("shared_tokens")),
            "num_trained_tokens": int(totals.get("trained_tokens")),
            "num_updates": int(totals.get("updates")),
            "num_nonfinite": int(totals.get("nonfinite")),
            **({} if self.critic is None else {"value_grad_norm": totals.mean("value_grad_norm", "value_updates")}),
            "update_s": time.perf_counter() - started - self.waited_s,
        }

    def miss_batch(self) -> None:
        """Count the updates of a batch that was planned and had nothing to learn from.

        The batches that only a critic learns from come first, so that one of the others is made in its place, and the
        last of those is never made.
        """
        for optimizer in (self.optimizer, self.critic_optimizer):
            if optimizer is not None:
                optimizer.num_missed += self._planned

    def batch_parity(self, rows: Sequence[TrainSequence]) -> float:
        """Return the mean |trainer - sampler| log-probability over tokens that the model wrote; NaN without any."""
        differences = [
            (logprobs - self._floats(row.behaviour_logprobs))[row.mask()].abs()
            for row, logprobs in zip(rows, self.logprobs(rows), strict=True)
        ]
        together = torch.cat(differences) if differences else torch.empty(0)
        return float(together.mean()) if together.numel() else math.nan

    # --- the models, for the algorithm

    @property
    def dtype(self) -> torch.dtype:
        """See `Models`."""
        return self.model.dtype

    def logprobs(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        """See `Models`."""
        return self._computed(rows, self._logprobs_of(self.model))

    def reference_logprobs(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        """See `Models`."""
        if self.reference is None:
            raise RuntimeError(f"{type(self.algorithm).__name__} did not ask for a reference policy")
        return self._computed(rows, self._logprobs_of(self.reference))

    def values(self, rows: Sequence[TrainSequence]) -> list[Tensor]:
        """See `Models`."""
        if (critic := self.critic) is None:
            raise RuntimeError(f"{type(self.algorithm).__name__} did not ask for a critic")
        return self._computed(rows, critic.values)

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the weights of policy and reference, which are saved as models."""
        state: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "rng": self._rng.getstate(),
            "num_batches": self.num_batches,
            "algorithm": copy.deepcopy(self.algorithm.state_dict()),  # it may change at any time
            "reference_is_refreshed": self.reference_is_refreshed,
        }
        if self.critic is not None and self.critic_optimizer is not None:
            state |= {"critic": self.critic.weights(), "critic_optimizer": self.critic_optimizer.state_dict()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from where `state_dict` was taken, bit for bit, given the same weights."""
        self.optimizer.load_state_dict(state["optimizer"])
        version, internal, gauss = state["rng"]
        self._rng.setstate((version, tuple(internal), gauss))
        self.num_batches = int(state["num_batches"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.reference_is_refreshed = bool(state["reference_is_refreshed"])
        if self.critic is not None and self.critic_optimizer is not None:
            self.critic.load_weights(state["critic"])
            self.critic_optimizer.load_state_dict(state["critic_optimizer"])

    # --- one batch

    def _split(self, rows: Sequence[TrainSequence]) -> list[list[int]]:
        """Return the indices of each update's rows: whole groups in random order, in nearly equal numbers."""
        groups: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(row.group_id, []).append(index)
        names = sorted(groups)
        self._rng.shuffle(names)
        num_parts = min(self.section.updates_per_step, len(names))
        return [[i for name in names[part::num_parts] for i in groups[name]] for part in range(num_parts)]

    def _prepared(self, rows: list[TrainSequence]) -> list[TrainSequence]:
        prepared = self.algorithm.prepare(rows, self)
        if len(prepared) != len(rows):
            raise ValueError(f"{type(self.algorithm).__name__}.prepare made {len(prepared)} rows of {len(rows)}")
        return prepared

    def _with_old_logprobs(
        self, rows: Sequence[TrainSequence], epochs: Sequence[Sequence[Sequence[int]]]
    ) -> list[TrainSequence]:
        """Add the log-probabilities under the weights before the batch, where they are not available for free.

        The first update of the batch runs on those weights itself, and an exact sampler has already provided the
        log-probabilities of fresh rows.
        """
        if Need.OLD_LOGPROBS not in self.algorithm.needs:
            return list(rows)
        needed = {index for index, row in enumerate(rows) if self.algorithm.has_gradient(row)}
        if len(epochs) == 1 and epochs[0]:
            needed -= set(epochs[0][0])
        known: Rows = {}
        if self.sampler_is_exact:
            fresh = {index for index in needed if rows[index].staleness == 0}
            known = {index: self._floats(rows[index].behaviour_logprobs) for index in sorted(fresh)}
            needed -= fresh
        chosen = sorted(needed)
        known |= dict(zip(chosen, self.logprobs([rows[index] for index in chosen]), strict=True))
        return [
            row.with_fields(**{OLD_LOGPROBS: known[index]}) if index in known else row for index, row in enumerate(rows)
        ]

    def _update_part(
        self, rows: Sequence[TrainSequence], part: Sequence[int], totals: Totals, *, weights_untouched: bool
    ) -> None:
        """Make one optimiser update, unless nothing in the part has a gradient. Counts are those of the whole part."""
        counts = GlobalCounts.of([rows[index].num_trained for index in part], [rows[index].unit for index in part])
        chosen = [rows[index] for index in part if self.algorithm.has_gradient(rows[index])]
        if not chosen:
            return
        trained = self.algorithm.trains(self.num_batches)
        of_policy = Trained.POLICY in trained
        measure_parity = of_policy and weights_untouched and all(row.staleness == 0 for row in chosen)

        def loss_of(batch: PackedBatch) -> tuple[Tensor, Sums]:
            outputs = self._outputs(batch, counts, trained)
            loss = self.algorithm.loss(outputs, batch)
            sums = loss.sums()
            if of_policy:
                shared = batch.num_tokens - batch.num_computed
                sums |= {"trained_tokens": len(batch.trained), "tokens": batch.num_tokens, "shared_tokens": shared}
            if measure_parity:
                difference = (outputs.logprobs.detach() - batch.behaviour_logprobs)[batch.trained]
                sums |= {"sum/parity": difference.abs().sum(), "count/parity": len(batch.trained)}
            return loss.value, sums

        batches = [batch.to(self.model.device) for batch in self._pack(chosen)]
        collected = self._executor.accumulate(loss_of, batches, self._parameters(trained))
        for sums in collected:
            totals.add(sums)
        parts = {name.removeprefix("part/") for sums in collected for name in sums if name.startswith("part/")}
        totals.add({f"updates/{name}": 1 for name in parts})
        self._step(trained, totals)

    def _count_missed(self, totals: Totals) -> None:
        """Tell the optimisers of updates that the batch did without, because it lacked a gradient or groups."""
        trained = self.algorithm.trains(self.num_batches)
        if Trained.POLICY in trained:
            self.optimizer.num_missed += self._planned - int(totals.get("updates"))
        if self.critic_optimizer is not None and Trained.CRITIC in trained:
            self.critic_optimizer.num_missed += self._planned - int(totals.get("value_updates"))

    def _outputs(self, batch: PackedBatch, counts: GlobalCounts, trained: frozenset[Trained]) -> TokenOutputs:
        return TokenOutputs(
            batch,
            counts,
            policy=self.model,
            reference=self.reference,
            critic=self.critic,
            trained=trained,
            temperature=batch.temperature,
            entropy=Need.ENTROPY in self.algorithm.needs,
            batch_number=self.num_batches,
        )

    def _parameters(self, trained: frozenset[Trained]) -> list[nn.Parameter]:
        own = self.optimizer.parameters if Trained.POLICY in trained else []
        more = self.critic_optimizer.parameters if self.critic_optimizer and Trained.CRITIC in trained else []
        return [*own, *more]

    def _wait(self) -> None:
        started = time.perf_counter()
        self._before_change()
        self.waited_s += time.perf_counter() - started

    def _step(self, trained: frozenset[Trained], totals: Totals) -> None:
        self._wait()
        if Trained.POLICY in trained:
            learning_rate = self.optimizer.learning_rate
            totals.add_step(self.optimizer.step(), learning_rate)
        if self.critic_optimizer is not None and Trained.CRITIC in trained:
            totals.add_norm(self.critic_optimizer.step(), "value_")

    def _logprobs_of(self, model: PolicyModel | Reference) -> Callable[[PackedBatch], Tensor]:
        return lambda batch: model.token_logprobs(batch, temperature=batch.temperature).logprobs

    def _computed(self, rows: Sequence[TrainSequence], of: Callable[[PackedBatch], Tensor]) -> list[Tensor]:
        """Return a model's outputs for each row, (L,) on the CPU, without gradients."""

        def work(batch: PackedBatch) -> list[Tensor]:
            with torch.no_grad():
                return list(torch.split(of(batch.to(self.model.device)).cpu(), list(batch.lengths)))

        batches = self._pack(rows)
        found = {
            index: part
            for batch, parts in zip(batches, self._executor.map(work, batches), strict=True)
            for index, part in zip(batch.indices, parts, strict=True)
        }
        return [found[index] for index in range(len(rows))]

    @property
    def _executor(self) -> MicrobatchExecutor:
        return self.model.executor(self.optimizer.parameters)

    def _pack(self, rows: Iterable[TrainSequence]) -> list[PackedBatch]:
        return pack_by_temperature(
            list(rows), self.section.tokens_per_microbatch, default=self.temperature,
            multiple_of=self._executor.width, dtype=self.model.dtype,
        )  # fmt: skip

    def _floats(self, values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=self.model.dtype)
