"""Names of the Redis streams and keys. Everything that services share in Redis is named here."""

from typing import Final

ROLLOUT_REQUESTS: Final = "gymfleet:rollout.requests"
TRAJECTORIES_RAW: Final = "gymfleet:trajectories.raw"

ROLLOUT_GROUP: Final = "rollout"
REWARD_GROUP: Final = "reward"
TRAINER_GROUP: Final = "trainer"

BODY_FIELD: Final = "body"
TRACE_FIELD: Final = "traceparent"

LIVE_POLICY: Final = "gymfleet:policy:live"
"""The newest policy version, as a `LivePolicy`, while its trainer runs: a replica that has an older one waits."""
LIVE_POLICY_TTL_S: Final = 30
"""The trainer renews the key in time; when it was killed, the replicas are free after so long."""
POLICY_OWNER: Final = "gymfleet:policy:owner"
"""The run whose policy the rollout replicas serve; it lives as long as the key above. A replica has one policy."""
LAST_POLICY_VERSION: Final = "gymfleet:policy:last"
"""The highest policy version that any run ever published: no number is used twice."""


def trajectories_scored(run_id: str) -> str:
    """One per run: two trainers never take each other's trajectories."""
    return f"gymfleet:trajectories.scored:{run_id}"


MAX_SEARCH_TREES: Final = 256
"""Records that stand on a run's stream of search trees; the oldest ones make room."""


def search_trees(run_id: str) -> str:
    """One per run: the `SearchTree` of each group that a strategy played together."""
    return f"gymfleet:search.trees:{run_id}"


def dead_letters(stream: str) -> str:
    """Where a message goes that could not be handled."""
    return f"{stream}:dead"


def produced_samples(run_id: str, group_id: str) -> str:
    """The set of samples of a group that already stand on the raw stream."""
    return f"gymfleet:produced:{run_id}:{group_id}"


def cancelled_run(run_id: str) -> str:
    """Set when a run was stopped for good: its waiting requests are dropped."""
    return f"gymfleet:cancelled:{run_id}"


HELD_GROUPS: Final = "gymfleet:reward.groups"
"""`run/group` of the groups of which the reward services hold records, by the time at which they are given up."""


def held_group(run_id: str, group_id: str) -> str:
    """The records of a group that is scored together, until it is whole."""
    return f"{HELD_GROUPS}:{run_id}:{group_id}"


def verdict_key(question: str) -> str:
    """A judge's verdict on a question, by the question's hash; the reward services share it for a while."""
    return f"gymfleet:reward.verdicts:{question}"
