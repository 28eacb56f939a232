"""Group-relative policy optimisation: an episode is compared with the others of its task."""

from typing import ClassVar

from gymfleet_trainer.learning.group_relative import GroupRelative, GroupRelativeOptions
from gymfleet_trainer.learning.policy_gradient import Clipped, ClippedOptions


class GrpoOptions(GroupRelativeOptions, ClippedOptions):
    """Options of GRPO; none of its own."""


class Grpo(GroupRelative[GrpoOptions], Clipped[GrpoOptions]):
    """GRPO, arXiv:2402.03300, with the symmetric clip and the aggregation of the paper.

    With `dynamic_sampling`, groups without a signal are replaced, as in DAPO, arXiv:2503.14476, section 3.2.
    """

    Options: ClassVar[type[GrpoOptions]] = GrpoOptions
