"""Decoupled PPO: for data that is some versions old, the clip and the correction have each their own policy."""

from typing import Annotated, ClassVar

from pydantic import Field

from gymfleet_trainer.learning.policy_gradient import CorrectionOptions
from gymfleet_trainer.learning.whitened_returns import WhitenedReturns, WhitenedReturnsOptions


class BehaviourOptions(CorrectionOptions):
    """How the behaviour policy, which may be some versions old, is corrected for: with a wide cap."""

    cap: Annotated[float, Field(gt=1)] = 5.0
    """C, above 1."""


class DecoupledPpoOptions(WhitenedReturnsOptions):
    """Decoupled PPO's own."""

    correction: BehaviourOptions = BehaviourOptions()


class DecoupledPpo(WhitenedReturns[DecoupledPpoOptions]):
    r"""Decoupled PPO as AReaL has it, arXiv:2505.24298, after Hilton et al., arXiv:2110.00641.

    .. math::
        L_t = -\min\Bigl(\frac{\pi_{prox}}{\pi_{behav}}, C\Bigr)
            \min\bigl(r_t A_t,\; \mathrm{clip}(r_t, 1 - \epsilon, 1 + \epsilon) A_t\bigr),
        \qquad r_t = \frac{\pi_\theta}{\pi_{prox}}

    where the proximal policy is the one before the batch, and the behaviour policy the one that wrote the token.
    `ppo` has both ratios here too, as all clipped algorithms have: it differs by its critic, and by a cap of 2 for
    data that is nearly fresh. This one has returns in the place of a critic, whitened over the batch, as AReaL's
    experiments have, and a cap of 5 for a `max_staleness` above 0. AReaL leaves out what is beyond its cap; with
    `correction.mode = "mask"` so does this.
    """

    Options: ClassVar[type[DecoupledPpoOptions]] = DecoupledPpoOptions
