"""The terms of a reward: each reads a finished trajectory and returns one number, before its weight is applied."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gymfleet_contracts.reward import ComponentOptions, RewardSpec
from gymfleet_contracts.trajectory import Trajectory


class ComponentError(Exception):
    """The component can never evaluate this trajectory, however often it is tried; the message says why."""


@dataclass(frozen=True, slots=True)
class Component:
    """A named, versioned term. `version` changes whenever its numbers change."""

    name: str
    version: str
    options: Callable[[RewardSpec], ComponentOptions]
    raw: Callable[[Trajectory, RewardSpec], float]


def goal(trajectory: Trajectory, spec: RewardSpec) -> float:
    """Return whether the task was solved; with `partial`, how far, on the scale from failure to success."""
    section = spec.goal
    if not section.partial:
        return section.success if trajectory.success else section.failure
    if not 0 <= trajectory.score <= 1:
        raise ComponentError(f"the environment's score {trajectory.score} is outside [0, 1]")
    return section.failure + trajectory.score * (section.success - section.failure)


def environment(trajectory: Trajectory, _: RewardSpec) -> float:
    """Return the sum of the environment's rewards for each step."""
    rewards = [turn.reward for turn in trajectory.turns]
    if not all(map(math.isfinite, rewards)):
        raise ComponentError(f"the environment's rewards {rewards} are not all finite")
    return math.fsum(rewards)


def reply_format(trajectory: Trajectory, _: RewardSpec) -> float:
    """Return the share of replies that follow the grammar and whose action the environment understood."""
    _require_turns(trajectory)
    good = sum(turn.format_valid and turn.action_valid for turn in trajectory.turns)
    return good / len(trajectory.turns)


def length(trajectory: Trajectory, spec: RewardSpec) -> float:
    """Return the mean over replies of the shaped excess or shortfall in tokens; 0 within the bounds."""
    _require_turns(trajectory)
    section = spec.length
    excesses = [
        max(section.min_tokens - num_tokens, num_tokens - section.max_tokens, 0)
        for num_tokens in (len(turn.response_token_ids) for turn in trajectory.turns)
    ]
    return sum(_SHAPES[section.shape](excess) for excess in excesses) / len(excesses)


def _require_turns(trajectory: Trajectory) -> None:
    if not trajectory.turns:
        raise ComponentError("the trajectory has no turns")


_SHAPES: Final[dict[str, Callable[[int], float]]] = {
    "linear": float,
    "quadratic": lambda excess: float(excess * excess),
    "log": math.log1p,
}

COMPONENTS: Final = (
    Component("goal", "1", lambda spec: spec.goal, goal),
    Component("environment", "1", lambda spec: spec.environment, environment),
    Component("format", "1", lambda spec: spec.format, reply_format),
    Component("length", "1", lambda spec: spec.length, length),
)
