"""Group-relative policy optimisation: an episode is compared with the others of its task."""

from collections.abc import Sequence
from typing import ClassVar

from gymfleet_contracts.trajectory import ScoredTrajectory
from torch import Tensor

from gymfleet_trainer.learning.advantages import grpo_advantages
from gymfleet_trainer.learning.algorithm import Verdict
from gymfleet_trainer.learning.policy_gradient import GroupBaseline, PolicyGradientOptions


class GrpoOptions(PolicyGradientOptions):
    """GRPO's own."""

    normalise_by_std: bool = True
    """Divide a group's advantages by their standard deviation."""
    dynamic_sampling: bool = False
    """Ask for another group in the place of one whose episodes all have the same reward, and which therefore has no
    gradient; up to `max_redraws` times."""


class Grpo(GroupBaseline[GrpoOptions]):
    """GRPO, arXiv:2402.03300, with "clip-higher" of DAPO; without the division by the deviation Dr.GRPO.

    With `dynamic_sampling` groups without a signal are replaced, as in DAPO, arXiv:2503.14476, section 3.2.
    """

    Options: ClassVar[type[GrpoOptions]] = GrpoOptions

    def select(self, group: Sequence[ScoredTrajectory]) -> Verdict:
        """Ask for another group where all rewards are equal, if the recipe says so."""
        different = {scored.reward.total for scored in group if scored.reward is not None}
        return Verdict.ANOTHER if self.options.dynamic_sampling and len(different) < 2 else Verdict.KEEP

    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """See `grpo_advantages`."""
        return grpo_advantages(returns, groups, self.options.normalise_by_std)
