"""PPO: the policy gradient with a critic, generalised advantage estimation and whitening."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gymfleet_trainer.learning.advantages import gae, masked_whiten
from gymfleet_trainer.learning.algorithm import AlgorithmOptions, Loss, Models, Need, TokenOutputs, Trained
from gymfleet_trainer.learning.losses import value_loss
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, PolicyGradient, PolicyGradientOptions
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence
from gymfleet_trainer.model.optimizer import OptimizerOptions

_VALUES = "values"
_RETURNS = "returns"


class CriticOptions(AlgorithmOptions):
    """PPO's value function: its own model, initialised from the policy's body."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token."""
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Of generalised advantage estimation."""
    value_clip: PositiveFloat = 0.5
    """Clip range of the value loss."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the critic alone is trained."""
    optimizer: OptimizerOptions = OptimizerOptions(learning_rate=1e-5)


class PpoOptions(PolicyGradientOptions):
    """PPO's own."""

    critic: CriticOptions = CriticOptions()


class Ppo(PolicyGradient[PpoOptions]):
    """PPO, arXiv:1707.06347: per-token advantages come from a critic, not from the group, which may have one member.

    During the first `critic.warmup_steps` batches only the critic learns.
    """

    Options: ClassVar[type[PpoOptions]] = PpoOptions

    @property
    def needs(self) -> frozenset[Need]:
        """See `Algorithm`."""
        return super().needs | {Need.CRITIC}

    @property
    def gamma(self) -> float:
        """See `Algorithm`."""
        return self.options.critic.gamma

    @property
    def critic_optimizer(self) -> OptimizerOptions:
        """See `Algorithm`."""
        return self.options.critic.optimizer

    def trains(self, batch: int) -> frozenset[Trained]:
        """See `Algorithm`."""
        warms_up = batch < self.options.critic.warmup_steps
        return frozenset({Trained.CRITIC}) if warms_up else frozenset(Trained)

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Compute GAE over the tokens that the model wrote, whitened over the batch; also keep values and returns.

        An episode that has several rows is one sequence of written tokens here: after the last of a row comes the first
        of the next row, whose value is that of the state with the new context.
        Raises ValueError if the recipe cut off an episode whose record lacks the final prompt.
        """
        if not rows:
            return rows
        values, final_values = _values(rows, models)
        rewards = [torch.tensor(row, dtype=models.dtype) for row in self.penalised_rewards(rows, models)]
        episodes = _episodes(rows)
        mask = _joined([row.mask() for row in rows], episodes)
        critic = self.options.critic
        advantages, returns = gae(
            _joined(rewards, episodes),
            _joined(values, episodes),
            final_values[[indices[-1] for indices in episodes]],
            mask,
            critic.gamma,
            critic.lam,
        )
        whitened = masked_whiten(advantages, mask) if int(mask.sum()) > 1 else advantages
        lengths = [len(value) for value in values]
        return [
            row.with_fields(**{ADVANTAGES: advantage, _VALUES: value, _RETURNS: gain})
            for row, advantage, value, gain in zip(
                rows, _parted(whitened, episodes, lengths), values, _parted(returns, episodes, lengths), strict=True
            )
        ]

    def has_gradient(self, row: TrainSequence) -> bool:
        """Return True, because the critic learns from every row."""
        return row.num_trained > 0

    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Return the sum of the policy's and the critic's loss, which has both gradients, as they share no weight."""
        critic = value_loss(
            outputs.values,
            batch.fields[_VALUES],
            batch.fields[_RETURNS],
            outputs.weights("token_mean"),
            clip=self.options.critic.value_clip,
        )
        parts = {"value_loss": critic.detach()}
        if Trained.POLICY not in outputs.trained:
            return Loss(critic, parts=parts)
        policy = super().loss(outputs, batch)
        return replace(policy, value=policy.value + critic, parts={**policy.parts, **parts})


def _values(rows: Sequence[TrainSequence], models: Models) -> tuple[list[Tensor], Tensor]:
    """Return (L,) values per row, and (B,) values of the states where the recipe cut, 0 for ended episodes."""
    found = models.values([_with_final_state(row) for row in rows])
    ended = [row.final_prompt_token_ids is None for row in rows]
    final_values = torch.stack([values[-1] for values in found]).masked_fill(torch.tensor(ended), 0.0)
    return [values[: len(row.token_ids)] for values, row in zip(found, rows, strict=True)], final_values


def _with_final_state(row: TrainSequence) -> TrainSequence:
    """Append the final prompt of an episode that the recipe cut off, and one token, whose value is the final state's.

    Raises ValueError if the prompt is missing, because a cut must not be mistaken for an end.
    """
    prompt = row.final_prompt_token_ids
    if prompt is None:
        return row
    if not prompt:
        raise ValueError(f"{row.trajectory_id}: cut by the recipe, without the tokens of its final observation")
    added = [*prompt, prompt[-1]]  # which token comes last makes no difference
    nothing = [0.0] * len(added)
    return replace(
        row,
        token_ids=row.token_ids + added,
        loss_mask=row.loss_mask + [False] * len(prompt) + [True],
        behaviour_logprobs=row.behaviour_logprobs + nothing,
        token_rewards=row.token_rewards + nothing,
        fields={},
    )


def _episodes(rows: Sequence[TrainSequence]) -> list[list[int]]:
    """Return the indices of each episode's rows, in order."""
    episodes: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        episodes.setdefault(row.trajectory_id, []).append(index)
    return list(episodes.values())


def _joined(rows: Sequence[Tensor], episodes: Sequence[Sequence[int]]) -> Tensor:
    """Place each episode's rows end to end, and stack the episodes as (E, T), padded with zeros."""
    return pad_sequence([torch.cat([rows[index] for index in indices]) for indices in episodes], batch_first=True)


def _parted(joined: Tensor, episodes: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[Tensor]:
    """Undo `_joined`: return a tensor of its length for each row."""
    found: dict[int, Tensor] = {}
    for values, indices in zip(joined, episodes, strict=True):
        own = [lengths[index] for index in indices]
        found |= dict(zip(indices, values[: sum(own)].split(own), strict=True))
    return [found[index] for index in range(len(lengths))]
