"""The base of all policy gradients: a surrogate per token, importance weights, entropy bonus, KL to a reference."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeVar

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts
from gymfleet_contracts.schedule import Schedule, highest, value_at
from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from gymfleet_trainer.learning.algorithm import Algorithm, AlgorithmOptions, Loss, Models, Need, TokenOutputs, Trained
from gymfleet_trainer.learning.episodes import on_written, summed
from gymfleet_trainer.learning.kl import KlEstimator, adapted_coefficient, kl_estimate
from gymfleet_trainer.learning.losses import (
    ImportanceLevel,
    LossAggregation,
    Surrogate,
    Tokens,
    clipped_surrogate,
    importance_weight,
    weighted_mean,
)
from gymfleet_trainer.model.batching import PackedBatch, TrainSequence

ADVANTAGES = "advantages"
_KL_COEFFICIENT: Final = "kl_coefficient"

NO_GRADIENT: Final = (
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
            "$comment": NO_GRADIENT,
        }
    )

    coefficient: Annotated[float, Field(ge=0)] = 0.0
    """Weight; 0 is off."""
    estimator: KlEstimator = "k3"
    """k1, k2 or k3; k1 only in the reward, because its gradient as a loss is 0 in expectation."""
    placement: Literal["loss", "reward"] = "loss"
    """Whether the estimate is in the loss or in the reward."""
    target: PositiveFloat | None = None
    """The estimate per token to aim for: after each batch the coefficient goes up where the estimate is above it, down
    where it is below, by at most a fifth of 1 / `horizon`; by default the coefficient stays."""
    horizon: Annotated[float, Field(ge=1)] = 10.0
    """Number of batches over which the coefficient follows the target; 10 is the paper's gain of 0.1."""
    refresh_every: PositiveInt | None = None
    """Make the policy its own reference every this many batches, as in iterative GRPO; by default the reference stays
    the policy at the start of the stage."""

    @model_validator(mode="after")
    def a_controller_has_something_to_move(self) -> Self:
        """Require a coefficient above 0, because multiplying 0 leaves it at 0."""
        if self.target is not None and self.coefficient == 0:
            raise ValueError("target moves the coefficient, which is 0: give a coefficient above 0 to begin with")
        if self.refresh_every is not None and self.coefficient == 0:
            raise ValueError("refresh_every renews the reference, but coefficient = 0 asks for none")
        return self

    @model_validator(mode="after")
    def loss_has_a_gradient(self) -> Self:
        """Reject k1 as a loss: its expected gradient over the policy's own samples is 0, so it is only noise."""
        if self.coefficient > 0 and self.placement == "loss" and self.estimator == "k1":
            raise ValueError(NO_GRADIENT)
        return self


class CorrectionOptions(AlgorithmOptions):
    """The correction where the sampler is not the policy before the batch: stale weights, other kernels."""

    mode: Literal["truncate", "mask", "off"] = "truncate"
    """Each token's loss is multiplied by w = exp(old_logprobs - behaviour_logprobs), bounded by the cap (truncate), or
    left out where w lies beyond the cap or below 1 / cap (mask)."""
    level: ImportanceLevel = "token"
    """w of each token; or of its whole sequence: the product over its tokens (sequence), or their geometric mean
    (sequence_geometric)."""
    cap: Annotated[float, Field(gt=1)] = 2.0
    """C, the cap on w; above 1."""


class PolicyGradientOptions(AlgorithmOptions):
    """Options of every policy gradient."""

    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum, sequence_mean_token_mean or sequence_mean_token_sum_norm, which divides the
    sums by `norm_tokens`. Sequences are token sequences; an episode has several where its context was replaced."""
    norm_tokens: PositiveInt = 1024
    """The constant by which sequence_mean_token_sum_norm divides."""
    negative_aggregation: LossAggregation | None = None
    """Another aggregation for tokens with a negative advantage; by default the same."""
    entropy_coefficient: Annotated[float, Field(ge=0)] | Schedule = 0.0
    """Weight of the entropy bonus; or a table with `start`, `end`, `steps` and `shape`, over the stage's steps."""
    kl: KlOptions = KlOptions()
    correction: CorrectionOptions = CorrectionOptions()

    @model_validator(mode="after")
    def entropy_is_a_bonus(self) -> Self:
        """Require that its weight is never negative."""
        if isinstance(self.entropy_coefficient, Schedule) and self.entropy_coefficient.bounds[0] < 0:
            raise ValueError("entropy_coefficient: start and end must be at least 0")
        return self


class ClippedOptions(PolicyGradientOptions):
    """Options of a policy gradient with PPO's clipped surrogate."""

    clip_low: PositiveFloat = 0.2
    """The ratio is clipped at `1 - clip_low`."""
    clip_high: PositiveFloat = 0.2
    """The ratio is clipped at `1 + clip_high`."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Bound on the loss for negative advantages; above 1."""


OptionsT = TypeVar("OptionsT", bound=PolicyGradientOptions)
ClippedT = TypeVar("ClippedT", bound=ClippedOptions)


class PolicyGradient(Algorithm[OptionsT]):
    """Raise the probability of tokens with a positive advantage.

    Subclasses define the advantages (`prepare`), and the loss of a token with an advantage (`surrogate`).
    """

    Options: ClassVar[type[PolicyGradientOptions]] = PolicyGradientOptions
    reported: ClassVar[tuple[str, ...]] = ()
    """Fields that `prepare` adds, 0 on tokens without a loss; their means over the tokens become metrics."""

    def __init__(self, options: OptionsT) -> None:
        super().__init__(options)
        self._kl_coefficient = options.kl.coefficient
        self._kl_of_rewards = math.nan
        """Mean KL estimate over the batch's tokens, where it is in the reward."""

    @property
    def needs(self) -> frozenset[Need]:
        """See `Algorithm`."""
        asked = {Need.OLD_LOGPROBS, Need.ENTROPY}
        return frozenset(asked | {Need.REFERENCE} if self.options.kl.coefficient > 0 else asked)

    @abstractmethod
    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Return the rows with the field `advantages`."""

    @abstractmethod
    def surrogate(self, tokens: Tokens) -> Surrogate:
        """Return the loss of each token, before the importance weight. It may be called from several threads."""

    def has_gradient(self, row: TrainSequence) -> bool:
        """Return whether to compute a row: without KL loss and entropy bonus, zero advantages give no gradient."""
        everything_counts = highest(self.options.entropy_coefficient) > 0 or self._kl_in_loss
        return row.num_trained > 0 and (everything_counts or bool(row.fields[ADVANTAGES].any()))

    def loss(self, outputs: TokenOutputs, batch: PackedBatch) -> Loss:
        """Return the surrogate, less the entropy bonus, plus the KL estimate if the recipe puts it into the loss."""
        options, correction = self.options, self.options.correction
        num_tokens = len(batch.trained)
        weight = outputs.weights(options.aggregation, options.norm_tokens)
        old, logprobs = outputs.old_logprobs, outputs.logprobs
        tokens = Tokens.of(logprobs, old, batch.fields[ADVANTAGES], weight > 0, batch.cu_seqlens, batch.fields)
        found = self.surrogate(tokens)
        losses = found.losses
        sums: dict[str, Tensor] = {
            "clip_fraction": found.clipped.detach().sum().float(),
            "approx_kl": -tokens.log_ratio.detach().sum(),
            "entropy": outputs.entropy.detach().sum(),
        }
        if found.dual_clipped is not None:
            sums["dual_clip_fraction"] = found.dual_clipped.detach().sum().float()
        if correction.mode != "off":
            importance = importance_weight(
                old, batch.behaviour_logprobs, tokens.mask, batch.cu_seqlens,
                level=correction.level, cap=correction.cap, masked=correction.mode == "mask",
            )  # fmt: skip
            losses = losses * importance
            sums["importance_mean"] = importance[batch.trained].sum()
        sums |= {name: batch.fields[name].sum() for name in self.reported}
        loss = weighted_mean(losses, self._surrogate_weight(weight, tokens, outputs))
        if bonus := value_at(options.entropy_coefficient, outputs.batch_number + 1):
            loss = loss - bonus * weighted_mean(outputs.entropy, weight)
        if self._kl_in_loss:
            kl = kl_estimate(logprobs, outputs.reference_logprobs, options.kl.estimator)
            loss = loss + self._kl_coefficient * weighted_mean(kl, weight)
            sums["reference_kl"] = kl.detach().sum()
        ratio = tokens.ratio.detach()
        ratio_max = ratio.amax() if ratio.numel() else ratio.new_ones(())
        means: dict[str, tuple[Tensor | float, int]] = {name: (total, num_tokens) for name, total in sums.items()}
        if options.kl.target is not None:
            means[_KL_COEFFICIENT] = (self._kl_coefficient, 1)
        return Loss(loss, parts={"loss": loss.detach()}, means=means, maxima={"ratio_max": ratio_max})

    def penalised_rewards(self, rows: Sequence[TrainSequence], models: Models) -> list[list[float]]:
        """Return token rewards, minus the KL estimate if the recipe puts it into the reward."""
        options = self.options.kl
        if options.coefficient == 0 or options.placement != "reward":
            return [row.token_rewards for row in rows]
        penalised, total = [], 0.0
        for row, policy, reference in zip(rows, models.logprobs(rows), models.reference_logprobs(rows), strict=True):
            kl = kl_estimate(policy, reference, options.estimator) * row.mask()
            total += float(kl.sum())
            penalised.append((torch.tensor(row.token_rewards, dtype=models.dtype) - self._kl_coefficient * kl).tolist())
        num_tokens = sum(row.num_trained for row in rows)
        self._kl_of_rewards = total / num_tokens if num_tokens else math.nan
        return penalised

    def after_batch(self, batch: int, models: Models, reported: Mapping[str, float]) -> None:
        """Move the coefficient of the KL term, if the recipe has a target for it. See `adapted_coefficient`.

        Batches that train only a critic do not move it: the policy stands still, whatever the coefficient.
        """
        super().after_batch(batch, models, reported)
        options = self.options.kl
        if options.target is None or Trained.POLICY not in self.trains(batch):
            return
        measured = reported.get("reference_kl", math.nan) if self._kl_in_loss else self._kl_of_rewards
        if math.isfinite(measured):
            self._kl_coefficient = adapted_coefficient(
                self._kl_coefficient, measured, target=options.target, horizon=options.horizon
            )

    def refreshes_reference(self, num_batches: int) -> bool:
        """See `Algorithm`."""
        every = self.options.kl.refresh_every
        return every is not None and num_batches % every == 0

    def state_dict(self) -> dict[str, Any]:
        """Return the coefficient of the KL term, if it moves."""
        moved = {} if self.options.kl.target is None else {_KL_COEFFICIENT: self._kl_coefficient}
        return super().state_dict() | moved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Algorithm`."""
        super().load_state_dict(state)
        self._kl_coefficient = float(state.get(_KL_COEFFICIENT, self._kl_coefficient))

    def _surrogate_weight(self, weight: Tensor, tokens: Tokens, outputs: TokenOutputs) -> Tensor:
        """Return the weight of each token's surrogate, which may differ where the advantage is negative."""
        if (aggregation := self.options.negative_aggregation) is None:
            return weight
        return torch.where(tokens.advantages < 0, outputs.weights(aggregation, self.options.norm_tokens), weight)

    @property
    def _kl_in_loss(self) -> bool:
        return self.options.kl.coefficient > 0 and self.options.kl.placement == "loss"


class Clipped(PolicyGradient[ClippedT]):
    """A policy gradient with PPO's clipped surrogate."""

    Options: ClassVar[type[ClippedOptions]] = ClippedOptions

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """See `clipped_surrogate`."""
        options = self.options
        return clipped_surrogate(
            tokens, clip_low=options.clip_low, clip_high=options.clip_high, dual_clip=options.dual_clip
        )


class EpisodeAdvantages(PolicyGradient[OptionsT]):
    """One advantage for all tokens of an episode, from the returns of its group or of the batch."""

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
        totals = summed(rows, [sum(rewards) for rewards in self.penalised_rewards(rows, models)])
        groups = {row.trajectory_id: row.group_id for row in rows}
        returns = torch.tensor(list(totals.values()), dtype=models.dtype)
        advantages = self.advantages(returns, [groups[episode] for episode in totals])
        found = on_written(rows, dict(zip(totals, advantages, strict=True)))
        return [row.with_fields(**{ADVANTAGES: values}) for row, values in zip(rows, found, strict=True)]


class GroupBaseline(EpisodeAdvantages[ClippedT], Clipped[ClippedT]):
    """Compare episodes with others of their group, under PPO's clipped surrogate."""

    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2, sums_rewards=True)
