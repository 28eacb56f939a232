"""How trajectories are scored: the recipe's `[reward]` table, and `POST /v1/scores`."""

from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictFloat, model_validator

from gymfleet_contracts._model import WireModel
from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory

OnError = Literal["fail", "zero"]


class ComponentOptions(WireModel):
    """What every component of the reward has."""

    enabled: StrictBool = False
    """Count this component."""
    weight: StrictFloat = 1.0
    """Factor."""
    on_error: OnError = "fail"
    """What a component that keeps failing leads to: `fail`, no reward, and the episode is played anew; `zero`, it
    counts 0."""


class GoalReward(ComponentOptions):
    """Success gives `success`, failure `failure`; with `partial` the environment's score on that scale."""

    enabled: StrictBool = True
    """Count this component."""
    success: StrictFloat = 1.0
    """Raw reward of a solved task."""
    failure: StrictFloat = -1.0
    """Raw reward of an unsolved one."""
    partial: StrictBool = False
    """Put the environment's score on the scale from `failure` to `success`."""


class EnvironmentReward(ComponentOptions):
    """What the environment itself gave for each step."""

    credit: Literal["sum", "per_turn"] = "sum"
    """`sum`: their sum joins the total, and `allocation` spreads it. `per_turn`: each turn's stands on the last
    token of its reply, and `allocation` spreads the rest."""


class FormatReward(ComponentOptions):
    """The share of replies that follow the grammar and whose action the environment understood."""

    weight: StrictFloat = 0.2
    """Factor of the share of replies that follow the grammar and whose action was understood."""


class LengthReward(ComponentOptions):
    """A cost for replies outside `[min_tokens, max_tokens]`: the excess or the shortfall, in tokens."""

    weight: StrictFloat = -0.01
    """Factor, per token of excess or shortfall."""
    min_tokens: Annotated[int, Field(ge=0), NUMBER] = 20
    """Shortest reply without a cost."""
    max_tokens: Annotated[int, Field(ge=1), NUMBER] = 450
    """Longest reply without a cost."""
    shape: Literal["linear", "quadratic", "log"] = "linear"
    """How the cost grows: linear, quadratic, log."""

    @model_validator(mode="after")
    def bounds_are_ordered(self) -> "LengthReward":
        """`min_tokens <= max_tokens`."""
        if self.min_tokens > self.max_tokens:
            raise ValueError("length.min_tokens must not exceed length.max_tokens")
        return self


Allocation = Literal["last_token", "uniform_positive", "discounted", "discounted_normalised"]


Discount = Annotated[float, Field(ge=0, le=1), NUMBER]


class RewardTerms(WireModel):
    """Weights, switches and the way in which the total is spread over tokens."""

    goal: GoalReward = GoalReward()
    environment: EnvironmentReward = EnvironmentReward()
    format: FormatReward = FormatReward()
    length: LengthReward = LengthReward()
    allocation: Allocation = "last_token"
    """How the total is spread over tokens: last_token, uniform_positive, discounted, discounted_normalised."""


class RewardSpec(RewardTerms):
    """The terms and their discount, as they stand on the wire."""

    gamma: Discount = 1.0
    """Discount per token, for the discounted allocations."""


class ScoreRequest(WireModel):
    """What stands on the raw stream, and the body of `POST /v1/scores`."""

    trajectory: Trajectory
    reward: RewardSpec = RewardSpec()


class ScoreBatch(WireModel):
    """Several at once."""

    items: Annotated[tuple[ScoreRequest, ...], Field(min_length=1, max_length=1024)]


class ScoredBatch(WireModel):
    """In the order of the request."""

    items: tuple[ScoredTrajectory, ...]
