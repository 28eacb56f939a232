"""Odds ratio preference optimisation: imitate the chosen side, and prefer it; without a reference."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat
from torch.nn.functional import logsigmoid

from gymfleet_trainer.learning.preference_losses import log_odds_ratio
from gymfleet_trainer.learning.preferences import Judged, Paired, PairedOptions, Sides


class OrpoOptions(PairedOptions):
    """Options of ORPO."""

    beta: PositiveFloat = 0.1
    """Weight of the odds ratio relative to the imitation."""
    nll_coefficient: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the chosen side's mean negative log-likelihood, which is part of ORPO."""


class Orpo(Paired[OrpoOptions]):
    """ORPO, arXiv:2403.07691: the chosen side's likelihood and the odds against the rejected one, in one loss."""

    Options: ClassVar[type[OrpoOptions]] = OrpoOptions

    def judge(self, sides: Sides) -> Judged:
        """Return the paper's eq. 6 without the likelihood, which `Paired` adds."""
        ratios = log_odds_ratio(*sides.mean_logprobs.unbind(1))
        return Judged(-self.options.beta * logsigmoid(ratios), ratios)
