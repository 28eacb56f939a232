"""What the environment itself gave for each step."""

import math
from typing import Literal

from gymfleet_contracts.trajectory import Trajectory

from gymfleet_reward.component import Answer, Component, ComponentError, ComponentOptions


class EnvironmentOptions(ComponentOptions):
    """Where the environment's rewards go."""

    credit: Literal["sum", "per_turn"] = "sum"
    """`sum`: their sum joins the total, and `allocation` spreads it. `per_turn`: each turn's stands on the last
    token of its reply, and `allocation` spreads the rest."""


class Environment(Component[EnvironmentOptions]):
    """The rewards that the environment itself gave, step by step."""

    Options = EnvironmentOptions
    version = "1"

    def score(self, episode: Trajectory) -> Answer:
        """See `Component`."""
        rewards = [turn.reward for turn in episode.turns]
        if not all(map(math.isfinite, rewards)):
            raise ComponentError(f"the environment's rewards {rewards} are not all finite")
        return rewards if self.options.credit == "per_turn" else math.fsum(rewards)
