"""Prometheus metrics of the reward computation."""

from typing import Final

from prometheus_client import Counter

_SCORED: Final = Counter(
    "gymfleet_reward_scored",
    "Trajectories scored: rewarded, unrewarded (the machinery had failed), failed (a component did)",
    ["outcome"],
)
REWARDED: Final = _SCORED.labels("rewarded")
UNREWARDED: Final = _SCORED.labels("unrewarded")
FAILED: Final = _SCORED.labels("failed")
COMPONENT_FAILURES: Final = Counter(
    "gymfleet_reward_component_failures", "Components that could not be computed, after all attempts", ["component"]
)
JUDGE_CALLS: Final = Counter(
    "gymfleet_reward_judge_calls",
    "Answers asked of judges: answered (a verdict), nonsense (no verdict), failed (no answer in all tries)",
    ["judge", "outcome"],
)
JUDGE_CACHED: Final = Counter(
    "gymfleet_reward_judge_cached", "Verdicts that were known, or asked for already", ["judge"]
)
JUDGE_TOKENS: Final = Counter(
    "gymfleet_reward_judge_tokens", "Tokens that judges used: prompt, completion", ["judge", "kind"]
)
