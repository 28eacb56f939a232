"""Clip-Cov: a few of the tokens that make the entropy fall are left out."""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, PositiveFloat, model_validator

from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.covariance import covariances, marked
from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.losses import LossAggregation, Surrogate, Tokens
from gymfleet_trainer.learning.policy_gradient import Clipped, ClippedOptions
from gymfleet_trainer.model.batching import TrainSequence

_LEFT_OUT: Final = "left_out"


class ClipCovOptions(GroupRelativeOptions, ClippedOptions):
    """Options of Clip-Cov."""

    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum, sequence_mean_token_mean or sequence_mean_token_sum_norm, which divides the
    sums by `norm_tokens`."""
    clip_low: PositiveFloat = 1.0
    """The ratio is clipped at `1 - clip_low`: by default it has no lower bound."""
    clip_high: PositiveFloat = 1.0
    """The ratio is clipped at `1 + clip_high`."""
    share: Annotated[float, Field(gt=0, le=1)] = 2e-4
    """The share of the batch's tokens that is left out, at least one token; fewer if too few lie within the bounds."""
    covariance_low: float = 1.0
    """Only tokens whose covariance is above this are left out."""
    covariance_high: float = 5.0
    """Only tokens whose covariance is below this are left out."""

    @model_validator(mode="after")
    def bounds_are_in_order(self) -> Self:
        """Require `covariance_low` to be below `covariance_high`."""
        if self.covariance_low >= self.covariance_high:
            raise ValueError("covariance_low must be below covariance_high")
        return self


class ClipCov(GroupRelative[ClipCovOptions], Clipped[ClipCovOptions]):
    """Clip-Cov, arXiv:2505.22617: tokens drawn among those of high covariance have no gradient.

    See `covariances`. The draw depends only on the number of the batch.
    """

    Options: ClassVar[type[ClipCovOptions]] = ClipCovOptions

    def __init__(self, options: ClipCovOptions) -> None:
        super().__init__(options)
        self._num_batches = 0

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Choose the tokens to leave out."""
        rows = super().prepare(rows, models)
        if not any(row.num_trained for row in rows):
            return marked(rows, (), _LEFT_OUT)
        options, found = self.options, covariances(rows, models)
        between = ((found > options.covariance_low) & (found < options.covariance_high)).nonzero().flatten().tolist()
        count = min(max(int(options.share * len(found)), 1), len(between))
        return marked(rows, random.Random(self._num_batches).sample(between, count), _LEFT_OUT)

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """See `clipped_surrogate`; tokens that are left out count as clipped."""
        left_out = tokens.fields[_LEFT_OUT] > 0
        found = super().surrogate(tokens)
        return replace(found, losses=found.losses.masked_fill(left_out, 0.0), clipped=found.clipped | left_out)

    def after_batch(self, batch: int, models: Models, reported: Mapping[str, float]) -> None:
        """Count the batch; the next draw depends on the count."""
        super().after_batch(batch, models, reported)
        self._num_batches = batch + 1

    def state_dict(self) -> dict[str, Any]:
        """See `Algorithm`."""
        return super().state_dict() | {"num_batches": self._num_batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Algorithm`."""
        super().load_state_dict(state)
        self._num_batches = int(state["num_batches"])
