"""REINFORCE++: returns of the whole batch, whitened; no critic, and no group."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from gymfleet_trainer.learning.kl import KlEstimator
from gymfleet_trainer.learning.policy_gradient import NO_GRADIENT, KlOptions
from gymfleet_trainer.learning.whitened_returns import WhitenedReturns, WhitenedReturnsOptions

_K1_IN_LOSS: Final[dict[str, Any]] = {"estimator": {"const": "k1"}, "placement": {"const": "loss"}}


class RewardKlOptions(KlOptions):
    """Distance to the reference policy, by default in the reward."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {"coefficient": {"exclusiveMinimum": 0}, **_K1_IN_LOSS},
                "required": ["placement"],
            },
            "$comment": NO_GRADIENT,
        }
    )

    coefficient: Annotated[float, Field(ge=0)] = 0.01
    """Weight; 0 is off."""
    estimator: KlEstimator = "k1"
    """k1, k2 or k3; k1 only in the reward, because its gradient as a loss is 0 in expectation."""
    placement: Literal["loss", "reward"] = "reward"
    """Whether the estimate is in the loss or in the reward."""


class ReinforcePpOptions(WhitenedReturnsOptions):
    """Options of REINFORCE++."""

    kl: RewardKlOptions = RewardKlOptions()


class ReinforcePp(WhitenedReturns[ReinforcePpOptions]):
    r"""REINFORCE++, arXiv:2501.03262, for any group size, with the clipped surrogate of PPO.

    .. math::
        A_t = \sum_{k \ge t} \gamma^{k - t} \bigl(r_k - \beta\,\mathrm{KL}_k\bigr), \qquad
        \hat A_t = \frac{A_t - \mathrm{mean}(A)}{\mathrm{std}(A)}

    over the tokens that the model wrote, the only ones that k counts; mean and deviation are those of the batch.
    """

    Options: ClassVar[type[ReinforcePpOptions]] = ReinforcePpOptions
