"""VAPO: PPO with a critic that has time to learn, and with lambdas that depend on length."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Final

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from gymfleet_trainer.learning.actor_critic import ActorCritic, ActorCriticOptions, CriticOptions
from gymfleet_trainer.learning.algorithm import Loss, Models, Sample, TokenOutputs, Trained
from gymfleet_trainer.learning.losses import weighted_mean
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence

_SUCCESSFUL: Final = "successful"
_IMITATED: Final = "imitated"


class PretrainedCriticOptions(CriticOptions):
    """The value function: its own model, initialised from the policy's body, and trained ahead of the policy."""

    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Lambda of the returns that the critic learns; the policy's depends on the length."""
    warmup_steps: Annotated[int, Field(ge=0)] = 50
    """Number of steps in which only the critic is trained."""


class VapoOptions(ActorCriticOptions):
    """Options of VAPO."""

    clip_high: PositiveFloat = 0.28
    """The ratio is clipped at `1 + clip_high`."""
    lam_alpha: PositiveFloat = 0.05
    """The policy's lambda is `1 - 1 / (lam_alpha * length)`, at least 0; length is the episode's written tokens."""
    imitation: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the mean negative log-likelihood over the tokens of successful episodes."""
    critic: PretrainedCriticOptions = PretrainedCriticOptions()


class Vapo(ActorCritic[VapoOptions]):
    r"""VAPO, arXiv:2504.05118: value pretraining, decoupled and length-adaptive GAE, clip-higher, imitation.

    .. math::
        \lambda_{critic} = 1, \qquad \lambda_{policy} = 1 - \frac{1}{\alpha l}, \qquad
        L = L_{PPO} + \mu L_{NLL}

    where :math:`L_{NLL}` is over the successful episodes alone. With several updates per batch,
    each divides it as if all updates had the same share of successful tokens.
    """

    Options: ClassVar[type[VapoOptions]] = VapoOptions

    def policy_lam(self, num_written: Tensor) -> Tensor:
        """See `ActorCritic`."""
        return (1 - 1 / (self.options.lam_alpha * num_written.clamp(min=1))).clamp(min=0.0)

    def rows(self, group: Sequence[Sample]) -> list[TrainSequence]:
        """Mark the rows of successful episodes."""
        successful = {sample.scored.trajectory.trajectory_id: sample.scored.trajectory.success for sample in group}
        return [
            row.with_fields(**{_SUCCESSFUL: torch.full((len(row.token_ids),), float(successful[row.trajectory_id]))})
            for row in super().rows(group)
        ]

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Also set each token's likelihood weight to N / M: of the batch's N tokens, M are in successful episodes."""
        marks = [row.fields[_SUCCESSFUL].to(models.dtype) * row.mask() for row in rows]
        num_successful = sum(float(mark.sum()) for mark in marks)
        scale = sum(row.num_trained for row in rows) / max(num_successful, 1.0)
        prepared = zip(super().prepare(rows, models), marks, strict=True)
        return [row.with_fields(**{_IMITATED: mark * scale}) for row, mark in prepared]

    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Add the negative log-likelihood of the successful episodes."""
        loss = super().loss(outputs, batch)
        if Trained.POLICY not in outputs.trained or self.options.imitation == 0:
            return loss
        imitation = -weighted_mean(batch.fields[_IMITATED] * outputs.logprobs, outputs.weights("token_mean"))
        parts = {**loss.parts, "imitation_loss": imitation.detach()}
        return replace(loss, value=loss.value + self.options.imitation * imitation, parts=parts)
