"""Direct preference optimisation: of two episodes of a task, the better one becomes more probable."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveFloat, model_validator

from gymfleet_trainer.learning.algorithm import Need
from gymfleet_trainer.learning.preference_losses import DpoLoss, dpo_loss
from gymfleet_trainer.learning.preferences import Judged, Paired, PairedOptions, Sides


class DpoOptions(PairedOptions):
    """Options of DPO."""

    loss: DpoLoss = "sigmoid"
    """sigmoid, as in the paper; hinge (SLiC), ipo, or robust, which corrects for `label_smoothing`."""
    beta: PositiveFloat = 0.1
    """How strongly the policy is held to the reference."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """The share of the pairs assumed to be labelled the wrong way round; for sigmoid and robust."""
    length_normalised: bool | None = None
    """Compare means over a side's tokens instead of sums; by default means for ipo, and sums for the other losses."""

    @model_validator(mode="after")
    def smoothing_has_an_effect(self) -> Self:
        """Reject `label_smoothing` with a loss that does not use it; only two do."""
        if self.label_smoothing and self.loss not in ("sigmoid", "robust"):
            raise ValueError(f'label_smoothing has no effect with loss = "{self.loss}": leave it out')
        return self


class Dpo(Paired[DpoOptions]):
    """DPO, arXiv:2305.18290, on the tokens of the policy alone, as in ETO (arXiv:2403.02502) for agents."""

    Options: ClassVar[type[DpoOptions]] = DpoOptions

    @property
    def needs(self) -> frozenset[Need]:
        """Ask for a frozen copy of the policy."""
        return frozenset({Need.REFERENCE})

    def judge(self, sides: Sides) -> Judged:
        """See `dpo_loss`."""
        options = self.options
        means = options.loss == "ipo" if options.length_normalised is None else options.length_normalised
        gains = sides.mean_gains if means else sides.gains
        margins = gains[:, 0] - gains[:, 1]
        return Judged(
            dpo_loss(margins, kind=options.loss, beta=options.beta, label_smoothing=options.label_smoothing), margins
        )
