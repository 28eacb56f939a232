"""Group-relative policy optimisation: an episode is compared with the others of its task."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from gymfleet_trainer.learning.advantages import grpo_advantages
from gymfleet_trainer.learning.policy_gradient import GroupBaseline, PolicyGradientOptions


class GrpoOptions(PolicyGradientOptions):
    """GRPO's own."""

    normalise_by_std: bool = True
    """Divide a group's advantages by their standard deviation."""


class Grpo(GroupBaseline[GrpoOptions]):
    """GRPO, arXiv:2402.03300, with "clip-higher" of DAPO; without the division by the deviation Dr.GRPO."""

    Options: ClassVar[type[GrpoOptions]] = GrpoOptions

    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """See `grpo_advantages`."""
        return grpo_advantages(returns, groups, self.options.normalise_by_std)
