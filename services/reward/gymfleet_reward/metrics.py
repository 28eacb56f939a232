"""Prometheus metrics of the reward computation."""

from typing import Final

from prometheus_client import Counter

SCORED: Final = Counter(
    "gymfleet_reward_scored",
    "Trajectories scored: rewarded, unrewarded (the machinery had failed), failed (a component did)",
    ["outcome"],
)
COMPONENT_FAILURES: Final = Counter(
    "gymfleet_reward_component_failures", "Components that could not be computed, after all attempts", ["component"]
)
