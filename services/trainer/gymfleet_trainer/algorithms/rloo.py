"""REINFORCE leave-one-out: an episode is compared with the mean of the others of its task."""

from collections.abc import Sequence

from torch import Tensor

from gymfleet_trainer.learning.advantages import rloo_advantages
from gymfleet_trainer.learning.policy_gradient import ClippedOptions, GroupBaseline


class Rloo(GroupBaseline[ClippedOptions]):
    """RLOO, arXiv:2402.14740, with the clipped surrogate for batches of several updates."""

    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """See `rloo_advantages`."""
        return rloo_advantages(returns, groups)
