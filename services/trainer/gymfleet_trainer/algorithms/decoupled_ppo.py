"""Decoupled PPO: for data that is a few versions old, the clip and the correction each use a policy of their own."""

from typing import Annotated, ClassVar

from pydantic import Field

from gymfleet_trainer.learning.policy_gradient import CorrectionOptions
from gymfleet_trainer.learning.whitened_returns import WhitenedReturns, WhitenedReturnsOptions


class BehaviourOptions(CorrectionOptions):
    """The correction for a behaviour policy that may be a few versions old, with a wide cap."""

    cap: Annotated[float, Field(gt=1)] = 5.0
    """C, the cap on w; above 1."""


class DecoupledPpoOptions(WhitenedReturnsOptions):
    """Options of decoupled PPO."""

    correction: BehaviourOptions = BehaviourOptions()


class DecoupledPpo(WhitenedReturns[DecoupledPpoOptions]):
    r"""Decoupled PPO as in AReaL, arXiv:2505.24298, after Hilton et al., arXiv:2110.00641.

    .. math::
        L_t = -\min\Bigl(\frac{\pi_{prox}}{\pi_{behav}}, C\Bigr)
            \min\bigl(r_t A_t,\; \mathrm{clip}(r_t, 1 - \epsilon, 1 + \epsilon) A_t\bigr),
        \qquad r_t = \frac{\pi_\theta}{\pi_{prox}}

    where the proximal policy is the one before the batch, and the behaviour policy the one that wrote the token.
    `ppo`, like all clipped algorithms here, has both ratios too: it differs by its critic, and by a cap of 2 for data
    that is nearly fresh. Instead of a critic, this algorithm has returns whitened over the batch, as in AReaL's
    experiments, and a cap of 5 for a `max_staleness` above 0. AReaL leaves out tokens beyond its cap; with
    `correction.mode = "mask"` so does this algorithm.
    """

    Options: ClassVar[type[DecoupledPpoOptions]] = DecoupledPpoOptions
