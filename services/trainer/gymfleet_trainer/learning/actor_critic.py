"""The base of algorithms with a critic: values, generalised advantage estimation, the value loss."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from gymfleet_trainer.learning.advantages import gae
from gymfleet_trainer.learning.algorithm import AlgorithmOptions, Loss, Models, Need, TokenOutputs, Trained
from gymfleet_trainer.learning.episodes import by_episode, joined, parted, whitened
from gymfleet_trainer.learning.losses import value_loss
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, Clipped, ClippedOptions
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence
from gymfleet_trainer.model.optimizer import OptimizerOptions

VALUES = "values"
RETURNS = "returns"
VALUE_SIZE = "value_size"
"""The metric of how large the critic's values are: the mean of their absolute values."""

Cuts: TypeAlias = Literal["go_on", "end"]


class CriticOptions(AlgorithmOptions):
    """The value function: its own model, initialised from the policy's body."""

    gamma: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Discount per token."""
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda of generalised advantage estimation."""
    value_clip: PositiveFloat = 0.5
    """Clip range of the value loss."""
    cuts: Cuts = "go_on"
    """What follows where the recipe cut an episode: the value of the state at the cut, or with `"end"` nothing. With
    `gamma` 1, if episodes can fail only at the limit, every state that continues comes to be worth a success."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Number of steps in which only the critic is trained."""
    optimizer: OptimizerOptions = OptimizerOptions(learning_rate=1e-5)


class ActorCriticOptions(ClippedOptions):
    """Options of an algorithm with a critic."""

    critic: CriticOptions = CriticOptions()


ActorCriticT = TypeVar("ActorCriticT", bound=ActorCriticOptions)


class ActorCritic(Clipped[ActorCriticT]):
    """Per-token advantages come from a critic, not from the group, which may have one member.

    During the first `critic.warmup_steps` batches only the critic learns.
    """

    Options: ClassVar[type[ActorCriticOptions]] = ActorCriticOptions

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

    def policy_lam(self, num_written: Tensor) -> Tensor | None:  # noqa: ARG002 - for subclasses
        """Return (E,) lambdas of E episodes' advantages by their numbers of written tokens; None for the critic's."""
        return None

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Compute GAE over the tokens that the model wrote, whitened over the batch; also keep values and returns.

        An episode with several rows is one sequence of written tokens here: the last token of a row is followed by the
        first of the next row, whose value is that of the state with the new context.
        Raises ValueError if the recipe cut off an episode whose record lacks the final prompt.
        """
        if not rows:
            return rows
        values, final_values = values_of(rows, models, self.options.critic.cuts)
        rewards = [torch.tensor(row, dtype=models.dtype) for row in self.penalised_rewards(rows, models)]
        episodes = by_episode(rows)
        mask = joined([row.mask() for row in rows], episodes)
        critic = self.options.critic
        told = (
            joined(rewards, episodes),
            joined(values, episodes),
            final_values[[indices[-1] for indices in episodes]],
            mask,
            critic.gamma,
        )
        advantages, returns = gae(*told, critic.lam)
        if (lam := self.policy_lam(mask.sum(1).to(models.dtype))) is not None:
            advantages, _ = gae(*told, lam)
        lengths = [len(value) for value in values]
        return [
            row.with_fields(**{ADVANTAGES: advantage, VALUES: value, RETURNS: gain})
            for row, advantage, value, gain in zip(
                rows,
                whitened(rows, parted(advantages, episodes, lengths)),
                values,
                parted(returns, episodes, lengths),
                strict=True,
            )
        ]

    def has_gradient(self, row: TrainSequence) -> bool:
        """Return True, because the critic learns from every row."""
        return row.num_trained > 0

    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Return the sum of the policy's and the critic's loss; it has both gradients, as the two share no weight."""
        critic = value_loss(
            outputs.values,
            batch.fields[VALUES],
            batch.fields[RETURNS],
            outputs.weights("token_mean"),
            clip=self.options.critic.value_clip,
        )
        parts = {"value_loss": critic.detach()}
        means = {VALUE_SIZE: (batch.fields[VALUES][batch.trained].abs().sum(), len(batch.trained))}
        if Trained.POLICY not in outputs.trained:
            return Loss(critic, parts=parts, means=means)
        policy = super().loss(outputs, batch)
        return replace(
            policy,
            value=policy.value + critic,
            parts={**policy.parts, **parts},
            means={**policy.means, **means},
        )


def values_of(rows: Sequence[TrainSequence], models: Models, cuts: Cuts = "go_on") -> tuple[list[Tensor], Tensor]:
    """Return (L,) values per row, and the (B,) values of the states at the recipe's cuts, 0 for ended episodes."""
    if cuts == "end":
        values = models.values(rows)
        return values, values[0].new_zeros(len(rows))
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
