"""CISPO: the importance weight is clipped, and no token loses its gradient."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat

from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.losses import LossAggregation, Surrogate, Tokens


class CispoOptions(GroupRelativeOptions):
    """Options of CISPO."""

    aggregation: LossAggregation = "token_mean"
    """token_mean, sequence_mean_token_sum, sequence_mean_token_mean or sequence_mean_token_sum_norm, which divides the
    sums by `norm_tokens`."""
    weight_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The weight is at least `1 - weight_low`; at 1 there is no lower bound, as in the paper."""
    weight_high: PositiveFloat = 5.0
    """The weight is at most `1 + weight_high`."""


class Cispo(GroupRelative[CispoOptions]):
    r"""CISPO, arXiv:2506.13585 (MiniMax-M1), section 3.1, with the advantages of GRPO.

    .. math::
        L_t = -\mathrm{sg}\bigl(\mathrm{clip}(r_t, 1-\epsilon_l, 1+\epsilon_h)\bigr)\,A_t \log\pi_\theta
    """

    Options: ClassVar[type[CispoOptions]] = CispoOptions

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """Return the negative log-probability of each token, times its advantage and its bounded weight."""
        ratio = tokens.ratio.detach()
        weight = ratio.clamp(1 - self.options.weight_low, 1 + self.options.weight_high)
        return Surrogate(-weight * tokens.advantages * tokens.logprobs, weight != ratio)
