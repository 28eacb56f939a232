"""GSPO: the ratio, and with it the clip, applies to the whole sequence."""

from dataclasses import replace
from typing import ClassVar

from pydantic import PositiveFloat

from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.losses import Surrogate, Tokens, over_sequences
from gymfleet_trainer.learning.policy_gradient import Clipped, ClippedOptions


class GspoOptions(GroupRelativeOptions, ClippedOptions):
    """Options of GSPO."""

    clip_low: PositiveFloat = 3e-4
    """The sequence's ratio, a mean over its tokens that moves little, is clipped at `1 - clip_low`."""
    clip_high: PositiveFloat = 4e-4
    """The sequence's ratio is clipped at `1 + clip_high`."""


class Gspo(GroupRelative[GspoOptions], Clipped[GspoOptions]):
    r"""GSPO, arXiv:2507.18071, section 4.3, in its token-level form, with the advantages of GRPO.

    .. math::
        s_{i,t} = \mathrm{sg}(s_i)\,\frac{\pi_\theta(y_{i,t})}{\mathrm{sg}(\pi_\theta(y_{i,t}))}, \qquad
        s_i = \exp\Bigl(\frac{1}{|y_i|} \sum_t \log\frac{\pi_\theta(y_{i,t})}{\pi_{old}(y_{i,t})}\Bigr)

    under PPO's clipped surrogate. A sequence is a row: the tokens that the model wrote in one context.
    """

    Options: ClassVar[type[GspoOptions]] = GspoOptions

    def surrogate(self, tokens: Tokens) -> Surrogate:
        """See `clipped_surrogate`; each token has its sequence's ratio, and its own gradient."""
        whole = over_sequences(tokens.log_ratio, tokens.mask, tokens.cu_seqlens, mean=True).detach()
        return super().surrogate(replace(tokens, log_ratio=whole + tokens.logprobs - tokens.logprobs.detach()))
