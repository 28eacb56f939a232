"""A value for solving a task in few turns."""

from typing import Annotated, Self

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.plugins import ASCENDING
from pydantic import ConfigDict, Field, model_validator

from gymfleet_reward.component import Component, ComponentOptions, turns_of


class EfficiencyOptions(ComponentOptions):
    """The numbers of turns that are few and that are many."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["best_turns", "worst_turns"]})

    best_turns: Annotated[int, Field(ge=1), NUMBER] = 1
    """This many turns, or fewer, are worth 1."""
    worst_turns: Annotated[int, Field(ge=2), NUMBER] = 20
    """This many turns, or more, are worth 0; above `best_turns`."""

    @model_validator(mode="after")
    def bounds_are_ordered(self) -> Self:
        """Require `best_turns < worst_turns`."""
        if self.best_turns >= self.worst_turns:
            raise ValueError("worst_turns must be above best_turns")
        return self


class Efficiency(Component[EfficiencyOptions]):
    """How few turns a solved task took, from 1 at `best_turns` down to 0 at `worst_turns`; 0 for an unsolved one."""

    Options = EfficiencyOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`. Giving up early saves nothing."""
        turns = turns_of(episode)
        if not episode.success:
            return 0.0
        best, worst = self.options.best_turns, self.options.worst_turns
        return min(1.0, max(0.0, (worst - len(turns)) / (worst - best)))
