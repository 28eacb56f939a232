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
"""The newest policy version, as a `LivePolicy`, while its trainer runs: a replica with an older one waits."""
LIVE_POLICY_TTL_S: Final = 30
"""The trainer renews the key before it expires; if the trainer is killed, the replicas are free after this time."""
POLICY_OWNER: Final = "gymfleet:policy:owner"
"""The run whose policy the rollout replicas serve; it lives as long as `LIVE_POLICY`. A replica has one policy."""
LAST_POLICY_VERSION: Final = "gymfleet:policy:last"
"""The highest policy version that any run ever published: no number is used twice."""


def trajectories_scored(run_id: str) -> str:
    """The stream of a run's scored trajectories: with one per run, trainers never take each other's trajectories."""
    return f"gymfleet:trajectories.scored:{run_id}"


MAX_SEARCH_TREES: Final = 256
"""Maximum number of records on a run's stream of search trees; the oldest ones make room."""


def search_trees(run_id: str) -> str:
    """The stream of a run's search trees: the `SearchTree` of each group that a strategy played together."""
    return f"gymfleet:search.trees:{run_id}"


def dead_letters(stream: str) -> str:
    """The stream of the messages that could not be handled."""
    return f"{stream}:dead"


def produced_samples(run_id: str, group_id: str) -> str:
    """The set of a group's samples that are already on the raw stream."""
    return f"gymfleet:produced:{run_id}:{group_id}"


def cancelled_run(run_id: str) -> str:
    """The key that is set when a run is stopped for good: its waiting requests are dropped."""
    return f"gymfleet:cancelled:{run_id}"


HELD_GROUPS: Final = "gymfleet:reward.groups"
"""The groups of which the reward services hold records, as `run/group`, by the time at which they are given up."""


def held_group(run_id: str, group_id: str) -> str:
    """The records of a group that is scored together, until it is complete."""
    return f"{HELD_GROUPS}:{run_id}:{group_id}"


def verdict_key(question: str) -> str:
    """A judge's verdict on a question, by the question's hash; the reward services share it for a while."""
    return f"gymfleet:reward.verdicts:{question}"
