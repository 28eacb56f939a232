"""The environment's own reward for each step."""

import math
from typing import Annotated, Literal, Self

from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field, model_validator

from gymfleet_reward.component import Answer, Component, ComponentError, ComponentOptions, Number


class EnvironmentOptions(ComponentOptions):
    """How the environment's rewards count."""

    scale: Number = 1.0
    """Factor of each step's reward."""
    clip: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = None
    """Bound on their sum, on either side; only with `credit = "sum"`."""
    credit: Literal["sum", "per_turn"] = "sum"
    """`sum`: their sum is part of the total that `allocation` spreads. `per_turn`: each turn's reward is on the last
    token of its reply, and `allocation` spreads the rest."""

    @model_validator(mode="after")
    def only_a_sum_is_clipped(self) -> Self:
        """Reject `clip` without `credit = "sum"`."""
        if self.clip is not None and self.credit == "per_turn":
            raise ValueError('clip is for credit = "sum"')
        return self


class Environment(Component[EnvironmentOptions]):
    """The rewards that the environment itself gave, step by step."""

    Options = EnvironmentOptions
    version = "1"

    def score(self, episode: Trajectory) -> Answer:
        """See `Component`."""
        rewards = [turn.reward for turn in episode.turns]
        if not all(map(math.isfinite, rewards)):
            raise ComponentError(f"the environment's rewards {rewards} are not all finite")
        scaled = [self.options.scale * reward for reward in rewards]
        if self.options.credit == "per_turn":
            return scaled
        total, clip = math.fsum(scaled), self.options.clip
        return total if clip is None else min(clip, max(-clip, total))
