"""The reward of a trajectory: the weighted sum of its components, with the breakdown kept."""

import math
from collections.abc import Sequence

import structlog
from gymfleet_contracts.scoring import ScoreRequest, Scoring
from gymfleet_contracts.trajectory import Reward, RewardComponent, ScoredTrajectory, Trajectory

from gymfleet_reward.allocation import allocate
from gymfleet_reward.components import COMPONENTS, Component, ComponentError
from gymfleet_reward.metrics import COMPONENT_FAILURES, SCORED

log = structlog.get_logger()


def score(request: ScoreRequest, components: Sequence[Component] = COMPONENTS) -> ScoredTrajectory:
    """Score one trajectory. One that the machinery spoiled gets no reward: None, never 0."""
    trajectory = request.trajectory
    if not trajectory.status.trainable:
        SCORED.labels("unrewarded").inc()
        return ScoredTrajectory(trajectory=trajectory, reward=None)
    SCORED.labels("rewarded").inc()
    return ScoredTrajectory(trajectory=trajectory, reward=compose(trajectory, request.scoring, components))


def compose(trajectory: Trajectory, scoring: Scoring, components: Sequence[Component] = COMPONENTS) -> Reward:
    """Total, breakdown and token rewards. A component that raises counts 0 and says why in `error`."""
    used = [component for component in components if component.enabled(scoring)]
    terms = {component.name: _evaluate(component, trajectory, scoring) for component in used}
    total = math.fsum(term.value for term in terms.values())
    lengths = [len(turn.response_token_ids) for turn in trajectory.turns]
    return Reward(
        total=total,
        components=terms,
        allocation=scoring.allocation,
        token_rewards=allocate(scoring.allocation, total, lengths, scoring.gamma),
        scorers={component.name: component.version for component in used},
    )


def _evaluate(component: Component, trajectory: Trajectory, scoring: Scoring) -> RewardComponent:
    weight = component.weight(scoring)
    try:
        raw = component.raw(trajectory, scoring)
        value = weight * raw
        if not math.isfinite(value):
            raise ComponentError(f"{weight} * {raw} is not finite")
    except Exception as error:
        COMPONENT_FAILURES.labels(component.name).inc()
        log.warning(
            "component.failed",
            component=component.name,
            trajectory_id=trajectory.trajectory_id,
            exc_info=None if isinstance(error, ComponentError) else error,
            error=str(error),
        )
        return RewardComponent(raw=0.0, weight=weight, value=0.0, error=f"{type(error).__name__}: {error}")
    return RewardComponent(raw=raw, weight=weight, value=value)
