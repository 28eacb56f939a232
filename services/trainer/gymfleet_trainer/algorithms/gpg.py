"""GPG: the plain policy gradient over groups, without a ratio and its clip."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from gymfleet_contracts.recipe_sections import AlgorithmFacts
from torch import Tensor

from gymfleet_trainer.learning.advantages import gpg_advantages
from gymfleet_trainer.learning.losses import Surrogate, Tokens
from gymfleet_trainer.learning.policy_gradient import EpisodeAdvantages, PolicyGradientOptions


class GpgOptions(PolicyGradientOptions):
    """Options of GPG."""

    normalise_by_std: bool = False
    """Divide a group's advantages by their standard deviation."""


class Gpg(EpisodeAdvantages[GpgOptions]):
    """GPG, arXiv:2504.02546: `-A log pi`, where groups without a signal do not shrink the gradient of the others."""

    Options: ClassVar[type[GpgOptions]] = GpgOptions
    facts: ClassVar[AlgorithmFacts] = AlgorithmFacts(min_group_size=2, sums_rewards=True)

    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """See `gpg_advantages`."""
        return gpg_advantages(returns, groups, self.options.normalise_by_std)

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """Return the negative log-probability of each token, times its advantage."""
        return Surrogate(-tokens.advantages * tokens.logprobs, torch.zeros_like(tokens.mask))
