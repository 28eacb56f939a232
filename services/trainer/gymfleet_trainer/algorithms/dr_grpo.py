"""Dr.GRPO: GRPO without the two divisions that favour easy tasks and long wrong answers."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from gymfleet_trainer.learning.advantages import grpo_advantages
from gymfleet_trainer.learning.losses import LossAggregation
from gymfleet_trainer.learning.policy_gradient import ClippedOptions, GroupBaseline


class DrGrpoOptions(ClippedOptions):
    """Options of Dr.GRPO."""

    aggregation: LossAggregation = "sequence_mean_token_sum_norm"
    """By default as in the paper: sums over tokens, divided by the constant `norm_tokens`. Or token_mean,
    sequence_mean_token_sum or sequence_mean_token_mean."""


class DrGrpo(GroupBaseline[DrGrpoOptions]):
    """Dr.GRPO, arXiv:2503.20783: `A = R - mean`, and a constant instead of the length."""

    Options: ClassVar[type[DrGrpoOptions]] = DrGrpoOptions

    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """See `grpo_advantages`, without the division."""
        return grpo_advantages(returns, groups, normalise_by_std=False)
