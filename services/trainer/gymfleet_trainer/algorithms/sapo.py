"""SAPO: a gate that closes softly replaces the clip."""

from typing import ClassVar

import torch
from pydantic import PositiveFloat

from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.losses import Surrogate, Tokens


class SapoOptions(GroupRelativeOptions):
    """Options of SAPO."""

    tau_positive: PositiveFloat = 1.0
    """How fast the gate closes for tokens with a positive advantage, as their ratio leaves 1."""
    tau_negative: PositiveFloat = 1.05
    """The same for tokens with a negative advantage, whose gradients are less stable."""


class Sapo(GroupRelative[SapoOptions]):
    r"""SAPO, arXiv:2511.20347, with the advantages of GRPO.

    .. math::
        L_t = -\frac{4}{\tau}\,\sigma\bigl(\tau (r_t - 1)\bigr) A_t, \qquad
        \tau = \tau_{pos} \text{ if } A_t > 0, \text{ else } \tau_{neg}

    whose gradient at r = 1 is that of the policy gradient.
    """

    Options: ClassVar[type[SapoOptions]] = SapoOptions

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """Return the gated loss of each token. No token counts as clipped."""
        advantages = tokens.advantages
        positive, negative = (
            advantages.new_tensor(tau) for tau in (self.options.tau_positive, self.options.tau_negative)
        )
        tau = torch.where(advantages > 0, positive, negative)
        gate = torch.sigmoid(tau * (tokens.ratio - 1)) * 4 / tau
        return Surrogate(-gate * advantages, torch.zeros_like(tokens.mask))
