"""GMPO: the geometric mean of a sequence's ratios, which outliers move less than the arithmetic one."""

from typing import ClassVar

import torch
from pydantic import PositiveFloat

from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.losses import Surrogate, Tokens, bounded_exp, over_sequences


class GmpoOptions(GroupRelativeOptions):
    """Options of GMPO."""

    clip_low: PositiveFloat = 0.4
    """The logarithm of a token's ratio is clipped at `-clip_low`."""
    clip_high: PositiveFloat = 0.4
    """The logarithm of a token's ratio is clipped at `clip_high`."""


class Gmpo(GroupRelative[GmpoOptions]):
    r"""GMPO, arXiv:2507.20673, with the advantages of GRPO.

    .. math::
        L_i = -A_i \exp\Bigl(\frac{1}{|y_i|} \sum_t \ell_{i,t}\Bigr), \qquad
        \ell_{i,t} = \mathrm{sgn}(A_i) \min\bigl(\mathrm{sgn}(A_i) \log r_{i,t},\;
            \mathrm{sgn}(A_i)\,\mathrm{clip}(\log r_{i,t}, -\epsilon_l, \epsilon_h)\bigr)

    Every token of a sequence (a row) has the loss of the sequence; the mean of these is the paper's loss.
    """

    Options: ClassVar[type[GmpoOptions]] = GmpoOptions

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """Return each sequence's loss on all of its tokens. Tokens without a gradient count as clipped."""
        plain, sign = tokens.log_ratio, tokens.advantages.sign()
        clipped = plain.clamp(-self.options.clip_low, self.options.clip_high)
        held = sign * clipped < sign * plain
        chosen = torch.where(held, clipped, plain)
        ratio = bounded_exp(over_sequences(chosen, tokens.mask, tokens.cu_seqlens, mean=True))
        return Surrogate(-tokens.advantages * ratio, held)
