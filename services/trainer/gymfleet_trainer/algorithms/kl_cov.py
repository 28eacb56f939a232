"""KL-Cov: the tokens that make the entropy fall most are held where they were."""

from typing import Annotated, ClassVar, Final

import torch
from pydantic import Field

from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.covariance import covariances, marked
from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.losses import LossAggregation, Surrogate, Tokens
from gymfleet_trainer.model.batching import TrainSequence

_HELD: Final = "held"
_ROUNDING: Final = 1e-4
"""A token that moved less counts as unmoved: the sign of its distance, which its gradient would have, is rounding."""


class KlCovOptions(GroupRelativeOptions):
    """Options of KL-Cov."""

    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum, sequence_mean_token_mean or sequence_mean_token_sum_norm, which divides the
    sums by `norm_tokens`."""
    share: Annotated[float, Field(gt=0, le=1)] = 2e-3
    """The share of the batch's tokens that is held, at least one token: those of the highest covariance."""
    hold: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the term that holds tokens: the distance of their log-probability from that before the batch."""


class KlCov(GroupRelative[KlCovOptions]):
    r"""KL-Cov, arXiv:2505.22617; nothing is clipped. See `covariances`.

    .. math:: L_t = -r_t A_t + \beta\,|\log\pi_\theta - \log\pi_{old}| \text{ on held tokens}
    """

    Options: ClassVar[type[KlCovOptions]] = KlCovOptions

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Choose the tokens to hold."""
        rows = super().prepare(rows, models)
        # Without an advantage anywhere there is no covariance to choose by, and no update to hold a token in.
        if not any(super(KlCov, self).has_gradient(row) for row in rows):
            return marked(rows, (), _HELD)
        found = covariances(rows, models)
        highest = torch.sort(found, descending=True, stable=True).indices
        return marked(rows, highest[: max(int(self.options.share * len(found)), 1)].tolist(), _HELD)

    def has_gradient(self, row: TrainSequence) -> bool:
        """Return whether to compute a row: held tokens have a gradient even without an advantage."""
        return super().has_gradient(row) or (row.num_trained > 0 and bool(row.fields[_HELD].any()))

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """Return the policy gradient's loss, plus the holding term on held tokens. Those count as clipped."""
        held = tokens.fields[_HELD] > 0
        losses = -tokens.ratio * tokens.advantages
        distance = tokens.log_ratio.abs()
        distance = torch.where(held & (distance > _ROUNDING), distance, 0.0)
        return Surrogate(losses + self.options.hold * distance, held)
