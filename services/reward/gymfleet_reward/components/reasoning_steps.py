"""Reasoning in steps."""

import re
from typing import Annotated, Final

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field

from gymfleet_reward.component import Component, ComponentOptions, turns_of

_MARKER: Final = re.compile(r"Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,", re.MULTILINE)


class ReasoningStepsOptions(ComponentOptions):
    """How many steps are enough."""

    enough: Annotated[int, Field(ge=1), NUMBER] = 3
    """This many steps in a reply, or more, are worth 1."""


class ReasoningSteps(Component[ReasoningStepsOptions]):
    """The mean over replies of the share of `enough` steps that a reply marks, as Open-R1 counts them.

    A step is `Step 1:`, `1.` at the beginning of a line, a bullet, or one of First, Second, Next and Finally with a
    comma.
    """

    Options = ReasoningStepsOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        turns = turns_of(episode)
        counts = (len(_MARKER.findall(turn.text)) for turn in turns)
        return sum(min(1.0, count / self.options.enough) for count in counts) / len(turns)
