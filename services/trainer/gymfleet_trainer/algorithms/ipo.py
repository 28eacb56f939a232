"""Identity preference optimisation: DPO with a margin to reach instead of one to widen for ever."""

from typing import ClassVar

from gymfleet_trainer.algorithms.dpo import Dpo, DpoOptions
from gymfleet_trainer.learning.preference_losses import DpoLoss


class IpoOptions(DpoOptions):
    """DPO's options, with IPO's loss."""

    loss: DpoLoss = "ipo"
    """ipo; with any other loss this is `dpo`."""


class Ipo(Dpo):
    """IPO, arXiv:2310.12036: the mean log-ratio of a side's tokens is to differ by 1 / (2 beta)."""

    Options: ClassVar[type[DpoOptions]] = IpoOptions
