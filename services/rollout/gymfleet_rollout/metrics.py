"""Prometheus metrics of the rollout service."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

_LATENCY_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)

EPISODES: Final = Counter("gymfleet_rollout_episodes", "Episodes that ended", ["env", "status"])
EPISODES_IN_FLIGHT: Final = Gauge("gymfleet_rollout_episodes_in_flight", "Episodes being played")
TURNS: Final = Counter("gymfleet_rollout_turns", "Turns played")
CUT_REPLIES: Final = Counter("gymfleet_rollout_cut_replies", "Replies cut by a limit on their tokens")
TOKENS: Final = Counter("gymfleet_rollout_tokens", "Tokens that the policy wrote")
INTERRUPTED: Final = Counter("gymfleet_rollout_interrupted", "Replies interrupted by new weights and resumed")
GENERATE_SECONDS: Final = Histogram("gymfleet_rollout_generate_seconds", "Time for one reply", buckets=_LATENCY_S)
ENVIRONMENT_SECONDS: Final = Histogram("gymfleet_rollout_environment_seconds", "Time for one step", buckets=_LATENCY_S)
UPDATE_SECONDS: Final = Histogram("gymfleet_rollout_update_seconds", "Time to load new weights", buckets=_LATENCY_S)
LIVE_VERSION: Final = Gauge("gymfleet_rollout_policy_version", "The policy version that answers")
GROUPS: Final = Counter("gymfleet_rollout_groups", "Groups taken from the stream", ["outcome"])
