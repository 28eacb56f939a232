"""The reward of a trajectory: the weighted sum of its components, together with the breakdown."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import structlog
from gymfleet_contracts.reward import ComponentOptions, RewardSpec, ScoreRequest
from gymfleet_contracts.trajectory import Reward, RewardComponent, ScoredTrajectory, Trajectory
from gymfleet_kit.retries import Retries

from gymfleet_reward.allocation import TokenRewards, allocate, on_own_turns
from gymfleet_reward.components import COMPONENTS, Component, ComponentError
from gymfleet_reward.metrics import COMPONENT_FAILURES, SCORED

log = structlog.get_logger()

_ATTEMPTS: Final = 3
_FIRST_PAUSE_S: Final = 0.2
"""Pause before the second attempt at a component, after which what it depends on may be back."""
_MAX_ERROR_CHARS: Final = 2_000


class NoReward(Exception):
    """The total cannot be computed; the message names the component and says why."""


def score(request: ScoreRequest, components: Sequence[Component] = COMPONENTS) -> ScoredTrajectory:
    """Compute the reward of one trajectory; blocks while a component that failed is tried again.

    A trajectory that an infrastructure failure spoiled, or for which a component
    keeps failing, has no reward, which is None and never 0.
    """
    trajectory = request.trajectory
    if not trajectory.status.trainable:
        SCORED.labels("unrewarded").inc()
        return ScoredTrajectory(trajectory=trajectory, reward=None)
    try:
        reward = compose(trajectory, request.reward, components)
    except NoReward as error:
        SCORED.labels("failed").inc()
        return ScoredTrajectory(trajectory=trajectory, reward=None, reward_error=str(error)[:_MAX_ERROR_CHARS])
    SCORED.labels("rewarded").inc()
    return ScoredTrajectory(trajectory=trajectory, reward=reward)


def compose(trajectory: Trajectory, spec: RewardSpec, components: Sequence[Component] = COMPONENTS) -> Reward:
    """Return total, breakdown and token rewards. Raises NoReward."""
    used = [component for component in components if component.options(spec).enabled]
    terms = {component.name: _evaluate(component, trajectory, spec) for component in used}
    total = _sum(term.value for term in terms.values())
    return Reward(
        total=total,
        components=terms,
        allocation=spec.allocation,
        token_rewards=_token_rewards(trajectory, spec, terms),
        scorers={component.name: component.version for component in used},
    )


def _token_rewards(trajectory: Trajectory, spec: RewardSpec, terms: dict[str, RewardComponent]) -> TokenRewards:
    """Allocate the total, except for the part that belongs to single turns and is put there."""
    lengths = [len(turn.response_token_ids) for turn in trajectory.turns]
    environment = terms.get("environment")
    if environment is None or environment.error is not None or spec.environment.credit == "sum":
        return allocate(spec.allocation, _sum(term.value for term in terms.values()), lengths, spec.gamma)
    rest = _sum(term.value for name, term in terms.items() if name != "environment")
    own = [environment.weight * turn.reward for turn in trajectory.turns]
    return on_own_turns(allocate(spec.allocation, rest, lengths, spec.gamma), own)


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except OverflowError:
        raise NoReward("the sum of the components is not finite") from None


def _evaluate(component: Component, trajectory: Trajectory, spec: RewardSpec) -> RewardComponent:
    """Compute one term. A failure that may pass is tried again; after that the component's options decide."""
    options = component.options(spec)
    bound = {"component": component.name, "trajectory_id": trajectory.trajectory_id}
    retries = Retries(
        "component.retried", on=Exception, unless=ComponentError, first_pause_s=_FIRST_PAUSE_S, level="info",
        bound=bound,
    )  # fmt: skip
    try:
        return retries.call_blocking(partial(_attempt, component, options, trajectory, spec), attempts=_ATTEMPTS)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        COMPONENT_FAILURES.labels(component.name).inc()
        trace = None if isinstance(error, ComponentError) else error
        log.warning("component.failed", **bound, error=reason, exc_info=trace)
        if options.on_error == "zero":
            return RewardComponent(raw=0.0, weight=options.weight, value=0.0, error=reason)
        raise NoReward(f"{component.name}: {reason}") from error


def _attempt(
    component: Component, options: ComponentOptions, trajectory: Trajectory, spec: RewardSpec
) -> RewardComponent:
    raw = component.raw(trajectory, spec)
    value = options.weight * raw
    if not math.isfinite(value):
        raise ComponentError(f"{options.weight} * {raw} is not finite")
    return RewardComponent(raw=raw, weight=options.weight, value=value)
