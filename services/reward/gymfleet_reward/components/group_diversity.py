"""Episodes of a group that go different ways."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field

from gymfleet_reward.component import Component, ComponentOptions, Number


class GroupDiversityOptions(ComponentOptions):
    """What makes two episodes differ."""

    weight: Number = 0.1
    """Factor of the share of the group's other episodes that went another way."""
    actions: Annotated[int, Field(ge=1), NUMBER] = 1
    """Number of actions from the beginning that are compared; with 1, the first alone."""


class GroupDiversity(Component[GroupDiversityOptions]):
    """The share of a group's other episodes that began with other actions, in [0, 1]; 0 for a single episode.

    A reply without an action counts as a separate action.
    """

    Options = GroupDiversityOptions
    version = "1"
    per: ClassVar[Literal["episode", "group"]] = "group"

    def score_batch(self, episodes: Sequence[Trajectory]) -> list[float]:
        """See `Component`."""
        if len(episodes) < 2:
            return [0.0] * len(episodes)
        ways = [tuple(turn.action for turn in episode.turns[: self.options.actions]) for episode in episodes]
        same = Counter(ways)
        return [(len(episodes) - same[way]) / (len(episodes) - 1) for way in ways]
