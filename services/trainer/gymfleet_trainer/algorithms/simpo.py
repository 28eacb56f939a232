"""Simple preference optimisation: the mean log-probability is the implicit reward; without a reference."""

from typing import Annotated, ClassVar

from pydantic import Field, PositiveFloat
from torch.nn.functional import logsigmoid

from gymfleet_trainer.learning.preferences import Judged, Paired, PairedOptions, Sides


class SimpoOptions(PairedOptions):
    """Options of SimPO."""

    beta: PositiveFloat = 2.0
    """Scale of the mean log-probabilities."""
    gamma: Annotated[float, Field(ge=0)] = 1.0
    """By how much the scaled mean of the chosen side should exceed that of the rejected side."""


class Simpo(Paired[SimpoOptions]):
    """SimPO, arXiv:2405.14734, eq. 6."""

    Options: ClassVar[type[SimpoOptions]] = SimpoOptions

    def judge(self, sides: Sides) -> Judged:
        """Return the loss with its target margin."""
        chosen, rejected = sides.mean_logprobs.unbind(1)
        margins = chosen - rejected
        return Judged(-logsigmoid(self.options.beta * margins - self.options.gamma), margins)
