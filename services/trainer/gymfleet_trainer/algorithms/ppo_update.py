"""PPO: the policy update with a critic, generalised advantage estimation and whitening."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import torch
from gymfleet_contracts.recipe import RlSection
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from gymfleet_trainer.algorithms.advantages import gae, masked_whiten
from gymfleet_trainer.algorithms.losses import GlobalCounts, token_weights, value_loss
from gymfleet_trainer.algorithms.policy_update import Logprobs, PolicyUpdater, UpdaterOptions
from gymfleet_trainer.algorithms.update_metrics import Sums, Totals, UpdateMetrics
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence
from gymfleet_trainer.model.critic import ValueModel
from gymfleet_trainer.model.optimizer import build_optimizer
from gymfleet_trainer.model.policy_model import PolicyModel


class PpoUpdater(PolicyUpdater):
    """Train with per-token advantages that come from a critic, not from the group; groups may have one member.

    During the first `critic.warmup_steps` batches only the critic learns.
    """

    def __init__(self, model: PolicyModel, rl: RlSection, **options: Unpack[UpdaterOptions]) -> None:
        """Take the arguments of `PolicyUpdater`; the critic starts from the policy's body as it is now."""
        super().__init__(model, rl, **options)
        self.critic = ValueModel(model)
        num_updates = rl.steps * rl.updates_per_step * rl.epochs_per_step
        self.critic_optimizer = build_optimizer(self.critic, rl.critic.optimizer, num_updates)
        self.num_batches = 0
        """Batches trained on so far."""
        self._values: dict[int, Tensor] = {}
        self._returns: dict[int, Tensor] = {}

    @property
    def critic_only(self) -> bool:
        """Return whether only the critic is being trained at present."""
        return self.num_batches < self.rl.critic.warmup_steps

    def update(self, sequences: list[TrainSequence]) -> UpdateMetrics:
        """Train policy and critic on one batch."""
        metrics = super().update(sequences)
        self._values, self._returns = {}, {}
        self.num_batches += 1
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's state, and the critic with its weights."""
        return super().state_dict() | {
            "critic": self.critic.weights(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "num_batches": self.num_batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly from where `state_dict` was taken, bit for bit, given the same policy weights."""
        super().load_state_dict(state)
        self.critic.load_weights(state["critic"])
        self.critic_optimizer.load_state_dict(state["critic_optimizer"])
        self.num_batches = int(state["num_batches"])

    def _with_advantages(self, sequences: list[TrainSequence]) -> list[TrainSequence]:
        """Compute GAE over the tokens that the model wrote, whitened over the batch; also keep values and returns.

        Raises ValueError if the recipe cut off an episode whose record lacks the final prompt.
        """
        if not sequences:
            return sequences
        values, final_values = self._critic_values(sequences)
        mask = _padded([torch.tensor(s.loss_mask) for s in sequences])
        mask[:, 0] = False
        rewards = _padded([self._floats(row) for row in self._penalised_rewards(sequences)])
        critic = self.rl.critic
        advantages, returns = gae(rewards, _padded(values), final_values, mask, critic.gamma, critic.lam)
        whitened = masked_whiten(advantages, mask) if int(mask.sum()) > 1 else advantages
        lengths = [len(sequence.token_ids) for sequence in sequences]
        self._values = dict(enumerate(values))
        self._returns = {index: returns[index, :length] for index, length in enumerate(lengths)}
        return [
            replace(sequence, advantages=row[:length].tolist())
            for sequence, row, length in zip(sequences, whitened, lengths, strict=True)
        ]

    def _critic_values(self, sequences: Sequence[TrainSequence]) -> tuple[list[Tensor], Tensor]:
        """Return (L,) values per sequence, and (B,) values of the states where the recipe cut, 0 for ended episodes."""

        def work(batch: PackedBatch) -> list[Tensor]:
            with torch.no_grad():
                values = self.critic.values(batch.to(self.model.device)).cpu()
            return list(torch.split(values, list(batch.lengths)))

        values: dict[int, Tensor] = {}
        executor = self._lanes
        batches = self._pack([_with_final_state(sequence) for sequence in sequences])
        for batch, parts in zip(batches, executor.map(work, batches), strict=True):
            values |= dict(zip(batch.indices, parts, strict=True))
        rows = [values[index] for index in range(len(sequences))]
        ended = [sequence.final_prompt_token_ids is None for sequence in sequences]
        final_values = torch.stack([row[-1] for row in rows]).masked_fill(torch.tensor(ended), 0.0)
        own = [row[: len(sequence.token_ids)] for row, sequence in zip(rows, sequences, strict=True)]
        return own, final_values

    def _has_gradient(self, sequence: TrainSequence) -> bool:
        """Return True, because the critic learns from every sequence."""
        return sequence.num_trained > 0

    def _complete(self, batch: PackedBatch, indices: list[int], old_logprobs: Logprobs) -> PackedBatch:
        return replace(
            super()._complete(batch, indices, old_logprobs),
            values=torch.cat([self._values[index] for index in indices]),
            returns=torch.cat([self._returns[index] for index in indices]),
        )

    def _trained_parameters(self) -> list[nn.Parameter]:
        own = self.critic_optimizer.parameters
        return own if self.critic_only else super()._trained_parameters() + own

    def _loss(self, batch: PackedBatch, counts: GlobalCounts, *, measure_parity: bool) -> tuple[Tensor, Sums]:
        """Return the sum of the policy's and the critic's loss, which has both gradients, as they share no weight."""
        if batch.values is None or batch.returns is None:
            raise RuntimeError("a critic update needs the batch's values and returns")
        weight = token_weights(batch.loss_mask, batch.cu_seqlens, "token_mean", counts, self.model.dtype)
        critic_loss = value_loss(
            self.critic.values(batch), batch.values, batch.returns, weight, clip=self.rl.critic.value_clip
        )
        sums: Sums = {"value_loss": critic_loss.detach()}
        if self.critic_only:
            return critic_loss, sums
        loss, policy_sums = super()._loss(batch, counts, measure_parity=measure_parity)
        return loss + critic_loss, policy_sums | sums

    def _step(self, totals: Totals) -> None:
        if not self.critic_only:
            super()._step(totals)
        totals.add_norm(self.critic_optimizer.step(), "value_")


def _with_final_state(sequence: TrainSequence) -> TrainSequence:
    """Append the final prompt of an episode that the recipe cut off, and one token, whose value is the final state's.

    Raises ValueError if the prompt is missing, because a cut must not be mistaken for an end.
    """
    prompt = sequence.final_prompt_token_ids
    if prompt is None:
        return sequence
    if not prompt:
        raise ValueError(f"{sequence.trajectory_id}: cut by the recipe, without the tokens of its final observation")
    added = [*prompt, prompt[-1]]  # which token comes last makes no difference
    nothing = [0.0] * len(added)
    return replace(
        sequence,
        token_ids=sequence.token_ids + added,
        loss_mask=sequence.loss_mask + [False] * len(prompt) + [True],
        behaviour_logprobs=sequence.behaviour_logprobs + nothing,
        token_rewards=sequence.token_rewards + nothing,
        advantages=[],
    )


def _padded(rows: list[Tensor]) -> Tensor:
    """Stack the rows as (B, T), padded with zeros."""
    return pad_sequence(rows, batch_first=True)
