"""The clipped policy gradient that GRPO, RLOO and PPO share: importance ratios, entropy bonus, KL to a reference."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, Self, TypeVar

import torch
from gymfleet_contracts.recipe import AlgorithmFacts
from gymfleet_contracts.schedule import Schedule, highest, value_at
from pydantic import ConfigDict, Field, PositiveFloat, model_validator
from torch import Tensor

from gymfleet_trainer.learning.algorithm import Algorithm, AlgorithmOptions, Loss, Models, Need, TokenOutputs
from gymfleet_trainer.learning.kl import KlEstimator, kl_estimate
from gymfleet_trainer.learning.losses import (
    LossAggregation,
    clipped_policy_loss,
    truncated_importance_weight,
    weighted_mean,
)
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence

ADVANTAGES = "advantages"


_NO_GRADIENT: Final = (
    'estimator = "k1" has no gradient in expectation as a loss: give estimator = "k2" or "k3", or placement = "reward"'
)


class KlOptions(AlgorithmOptions):
    """Distance to the reference policy (the policy at the start of reinforcement learning)."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {
                    "coefficient": {"exclusiveMinimum": 0},
                    "estimator": {"const": "k1"},
                    "placement": {"const": "loss"},
                },
                "required": ["coefficient", "estimator"],
            },
            "$comment": _NO_GRADIENT,
        }
    )

    coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight; 0 is off."""
    estimator: KlEstimator = "k3"
    """k1, k2 or k3; k1, whose gradient is 0 in expectation, in the reward only."""
    placement: Literal["loss", "reward"] = "loss"
    """In the loss or in the reward."""

    @model_validator(mode="after")
    def loss_has_a_gradient(self) -> Self:
        """The expected gradient of k1 over the policy's own samples is 0: as a loss it is noise alone."""
        if self.coefficient > 0 and self.placement == "loss" and self.estimator == "k1":
            raise ValueError(_NO_GRADIENT)
        return self


class PolicyGradientOptions(AlgorithmOptions):
    """What every clipped policy gradient can be told."""

    clip_low: PositiveFloat = 0.2
    """The ratio is clipped at `1 - clip_low`."""
    clip_high: PositiveFloat = 0.28
    """The ratio is clipped at `1 + clip_high`."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound of the loss for negative advantages; above 1."""
    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum or sequence_mean_token_mean; of token sequences, of which an episode has
    several where its context was replaced."""
    entropy_coefficient: Annotated[float, Field(ge=0)] | Schedule = 0.0
    """Weight of the entropy bonus; or a table with `start`, `end`, `steps` and `shape`, over the stage's steps."""
    kl: KlOptions = KlOptions()
    importance_cap: PositiveFloat = 2.0
    """C of truncated importance sampling, min(exp(old_logprobs - behaviour_logprobs), C), where the two disagree."""

    @model_validator(mode="after")
    def entropy_is_a_bonus(self) -> Self:
        """Its weight is never negative."""
        if isinstance(self.entropy_coefficient, Schedule) and self.entropy_coefficient.bounds[0] < 0:
            raise ValueError("entropy_coefficient: start and end must be at least 0")
        return self


OptionsT = TypeVar("OptionsT", bound=PolicyGradientOptions)


class PolicyGradient(Algorithm[OptionsT]):
    """Raise the probability of tokens with a positive advantage; subclasses say what an advantage is."""

    Options: ClassVar[type[PolicyGradientOptions]] = PolicyGradientOptions

    @property
    def needs(self) -> frozenset[Need]:
        """See `Algorithm`."""
        return frozenset({Need.OLD_LOGPROBS} | ({Need.REFERENCE} if self.options.kl.coefficient > 0 else set()))

    @abstractmethod
    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Return the rows with the field `advantages`."""

    def has_gradient(self, row: TrainSequence) -> bool:
        """Return whether to compute it: without KL loss and entropy bonus, zero advantage gives no gradient."""
        everything_counts = highest(self.options.entropy_coefficient) > 0 or self._kl_in_loss
        return row.num_trained > 0 and (everything_counts or bool(row.fields[ADVANTAGES].any()))

    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Return the surrogate, less the entropy bonus, plus the KL estimate if the recipe puts it into the loss."""
        options = self.options
        num_tokens = len(batch.trained)
        weight = outputs.weights(options.aggregation)
        old, logprobs = outputs.old_logprobs, outputs.logprobs
        importance = truncated_importance_weight(old, batch.behaviour_logprobs, options.importance_cap)
        policy = clipped_policy_loss(
            logprobs,
            old,
            batch.fields[ADVANTAGES],
            weight,
            clip_low=options.clip_low,
            clip_high=options.clip_high,
            dual_clip=options.dual_clip,
            importance_weight=importance,
        )
        loss = policy.loss
        sums: dict[str, Tensor] = {
            "clip_fraction": policy.clipped,
            "dual_clip_fraction": policy.dual_clipped,
            "approx_kl": policy.approx_kl,
            "importance_mean": importance[batch.trained].sum(),
            "entropy": outputs.entropy.detach().sum(),
        }
        if bonus := value_at(options.entropy_coefficient, outputs.batch_number + 1):
            loss = loss - bonus * weighted_mean(outputs.entropy, weight)
        if self._kl_in_loss:
            kl = kl_estimate(logprobs, outputs.reference_logprobs, options.kl.estimator)
            loss = loss + options.kl.coefficient * weighted_mean(kl, weight)
            sums["reference_kl"] = kl.detach().sum()
        means: Mapping[str, tuple[Tensor, int]] = {name: (total, num_tokens) for name, total in sums.items()}
        return Loss(loss, parts={"loss": loss.detach()}, means=means, maxima={"ratio_max": policy.ratio_max})

    def penalised_rewards(self, rows: Sequence[TrainSequence], models: Models) -> list[list[float]]:
        """Return token rewards, minus the KL estimate if the recipe puts it into the reward."""
        options = self.options.kl
        if options.coefficient == 0 or options.placement != "reward":
            return [row.token_rewards for row in rows]
        penalised = []
        for row, policy, reference in zip(rows, models.logprobs(rows), models.reference_logprobs(rows), strict=True):
            kl = kl_estimate(policy, reference, options.estimator) * row.mask()
            penalised.append((torch.tensor(row.token_rewards, dtype=models.dtype) - options.coefficient * kl).tolist())
        return penalised

    @property
    def _kl_in_loss(self) -> bool:
        return self.options.kl.coefficient > 0 and self.options.kl.placement == "loss"


class GroupBaseline(PolicyGradient[OptionsT]):
    """One advantage for all tokens of an episode, from the returns of its group."""

    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2, sums_rewards=True)

    @abstractmethod
    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """Return the (N,) advantages of N episodes with these returns; episodes of one task have one group."""

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Put each episode's advantage on the tokens that the model wrote, unless all rows have theirs already.

        The return of an episode that has several rows is the sum over them, and all of them get its advantage.
        Raises ValueError for a group with only one member, which has no baseline.
        """
        if all(ADVANTAGES in row.fields for row in rows):
            return rows
        totals: dict[str, float] = {}
        for row, rewards in zip(rows, self.penalised_rewards(rows, models), strict=True):
            totals[row.trajectory_id] = totals.get(row.trajectory_id, 0.0) + sum(rewards)
        groups = {row.trajectory_id: row.group_id for row in rows}
        returns = torch.tensor(list(totals.values()), dtype=models.dtype)
        advantages = self.advantages(returns, [groups[episode] for episode in totals])
        found = dict(zip(totals, advantages, strict=True))
        return [
            row.with_fields(**{ADVANTAGES: torch.where(torch.tensor(row.loss_mask), found[row.trajectory_id], 0.0)})
            for row in rows
        ]
