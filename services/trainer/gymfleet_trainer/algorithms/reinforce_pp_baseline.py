"""REINFORCE++ with a baseline: returns less the group's mean, whitened over the whole batch."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from gymfleet_trainer.learning.advantages import grpo_advantages
from gymfleet_trainer.learning.algorithm import Models
from gymfleet_trainer.learning.episodes import whitened
from gymfleet_trainer.learning.kl import KlEstimator
from gymfleet_trainer.learning.policy_gradient import ADVANTAGES, ClippedOptions, GroupBaseline, KlOptions
from gymfleet_trainer.model.batching import TrainSequence


class LossKlOptions(KlOptions):
    """Distance to the reference policy, by default as a loss with the gradient of the divergence."""

    coefficient: Annotated[float, Field(ge=0)] = 0.001
    """Weight; 0 is off."""
    estimator: KlEstimator = "k2"
    """k1, k2 or k3; k1 only in the reward, because its gradient as a loss is 0 in expectation."""


class ReinforcePpBaselineOptions(ClippedOptions):
    """Options of REINFORCE++-baseline."""

    kl: LossKlOptions = LossKlOptions()


class ReinforcePpBaseline(GroupBaseline[ReinforcePpBaselineOptions]):
    r"""REINFORCE++-baseline, arXiv:2501.03262: the deviation is that of the batch, not of the group as in GRPO.

    .. math::
        A_i = R_i - \mathrm{mean}_{group}(R), \qquad
        \hat A_{i,t} = \frac{A_i - \mathrm{mean}_{batch}(A)}{\mathrm{std}_{batch}(A)}

    where the batch's mean and deviation are over tokens: a long episode counts for more than a short one.
    """

    Options: ClassVar[type[ReinforcePpBaselineOptions]] = ReinforcePpBaselineOptions

    def advantages(self, returns: Tensor, groups: Sequence[str]) -> Tensor:
        """See `grpo_advantages`, without the division."""
        return grpo_advantages(returns, groups, normalise_by_std=False)

    def prepare(self, rows: list[TrainSequence], models: Models) -> list[TrainSequence]:
        """Whiten the advantages of the base class, unless all rows have their advantages already."""
        if all(ADVANTAGES in row.fields for row in rows):
            return rows
        centred = super().prepare(rows, models)
        found = whitened(rows, [row.fields[ADVANTAGES] for row in centred])
        return [row.with_fields(**{ADVANTAGES: values}) for row, values in zip(centred, found, strict=True)]
