"""The base of algorithms with the advantages of GRPO."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from gymfleet_contracts.recipe_sections import AlgorithmFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from torch import Tensor

from gymfleet_trainer.learning.advantages import grpo_advantages
from gymfleet_trainer.learning.algorithm import Verdict
from gymfleet_trainer.learning.losses import LossAggregation
from gymfleet_trainer.learning.policy_gradient import EpisodeAdvantages, PolicyGradientOptions


class GroupRelativeOptions(PolicyGradientOptions):
    """Options of an algorithm with the advantages of GRPO."""

    aggregation: LossAggregation = "sequence_mean_token_mean"
    """By default as in the paper. token_mean, sequence_mean_token_sum, sequence_mean_token_mean or
    sequence_mean_token_sum_norm, which divides the sums by `norm_tokens`."""
    normalise_by_std: bool = True
    """Divide a group's advantages by their standard deviation."""
    dynamic_sampling: bool = False
    """Ask for another group to replace one whose episodes all have the same reward, and which therefore has no
    gradient; up to `max_redraws` times."""


GroupRelativeT = TypeVar("GroupRelativeT", bound=GroupRelativeOptions)


class GroupRelative(EpisodeAdvantages[GroupRelativeT]):
    """Compare episodes with others of their group, in units of its standard deviation.

    With `dynamic_sampling`, groups without a signal are replaced, as in DAPO, arXiv:2503.14476, section 3.2.
    """

    Options: ClassVar[type[GroupRelativeOptions]] = GroupRelativeOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2, sums_rewards=True)

    def select(self, group: Sequence[ScoredTrajectory]) -> Verdict:
        """Ask for another group where all rewards are equal, if the recipe enables it."""
        different = {scored.reward.total for scored in group if scored.reward is not None}
        return Verdict.ANOTHER if self.options.dynamic_sampling and len(different) < 2 else Verdict.KEEP

    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """See `grpo_advantages`."""
        return grpo_advantages(returns, groups, self.options.normalise_by_std)
