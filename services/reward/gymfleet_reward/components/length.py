"""A cost for replies outside bounds."""

import math
from collections.abc import Callable
from typing import Annotated, Final, Literal, Self

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.plugins import ASCENDING
from pydantic import ConfigDict, Field, model_validator

from gymfleet_reward.component import Component, ComponentOptions, Number, reply_tokens

_SHAPES: Final[dict[str, Callable[[int], float]]] = {
    "linear": float,
    "quadratic": lambda excess: float(excess * excess),
    "log": math.log1p,
}


class LengthOptions(ComponentOptions):
    """A cost for replies outside `[min_tokens, max_tokens]`: the excess or the shortfall, in tokens."""

    model_config = ConfigDict(json_schema_extra={ASCENDING: ["min_tokens", "max_tokens"]})

    weight: Number = -0.01
    """Factor, per token of excess or shortfall."""
    min_tokens: Annotated[int, Field(ge=0), NUMBER] = 20
    """Shortest reply without a cost."""
    max_tokens: Annotated[int, Field(ge=1), NUMBER] = 450
    """Longest reply without a cost; at least `min_tokens`."""
    shape: Literal["linear", "quadratic", "log"] = "linear"
    """How the cost grows: linear, quadratic, log."""

    @model_validator(mode="after")
    def bounds_are_ordered(self) -> Self:
        """Require `min_tokens <= max_tokens`."""
        if self.min_tokens > self.max_tokens:
            raise ValueError("min_tokens must not exceed max_tokens")
        return self


class Length(Component[LengthOptions]):
    """The mean over replies of the shaped excess or shortfall in tokens; 0 within the bounds."""

    Options = LengthOptions
    version = "1"

    def score(self, episode: Trajectory) -> float:
        """See `Component`."""
        low, high, shape = self.options.min_tokens, self.options.max_tokens, _SHAPES[self.options.shape]
        excesses = [max(low - num_tokens, num_tokens - high, 0) for num_tokens in reply_tokens(episode)]
        return sum(map(shape, excesses)) / len(excesses)
