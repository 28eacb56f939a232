"""A value for length that depends on whether the task was solved."""

import math
from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from pydantic import Field

from gymfleet_reward.component import Component, ComponentOptions, Number, reply_tokens


class CosineLengthOptions(ComponentOptions):
    """The values of short and long episodes; in between, the value follows half a cosine."""

    max_tokens: Annotated[int, Field(ge=1), NUMBER] = 1_000
    """Number of sampled tokens from which on an episode is long; without a token it is short."""
    solved_short: Number = 1.0
    """Value of a solved task without a token."""
    solved_long: Number = 0.5
    """Value of a solved task with `max_tokens`."""
    unsolved_short: Number = -1.0
    """Value of an unsolved task without a token."""
    unsolved_long: Number = -0.5
    """Value of an unsolved task with `max_tokens`."""


class CosineLength(Component[CosineLengthOptions]):
    """The shorter an episode, the more a solved task pays and an unsolved one costs (arXiv:2502.03373, section 4)."""

    Options = CosineLengthOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        options = self.options
        short, long = (
            (options.solved_short, options.solved_long)
            if episode.success
            else (options.unsolved_short, options.unsolved_long)
        )
        progress = min(1.0, sum(reply_tokens(episode)) / options.max_tokens)
        return long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * progress))
