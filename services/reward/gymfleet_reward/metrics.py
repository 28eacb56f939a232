"""What Prometheus sees of the scoring."""

from typing import Final

from prometheus_client import Counter

SCORED: Final = Counter("gymfleet_reward_scored", "Trajectories scored, by whether they got a reward", ["outcome"])
COMPONENT_FAILURES: Final = Counter(
    "gymfleet_reward_component_failures", "Components that could not be computed and counted 0", ["component"]
)
