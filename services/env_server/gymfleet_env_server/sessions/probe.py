"""A probe of a shard: whether its environments can begin an episode."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gymfleet_contracts.session import Split
from gymfleet_envs.tasks import SPLITS
from gymfleet_kit.session_problems import EnvironmentFailed

from gymfleet_env_server.catalogue import Entry
from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.models.replies import AskCounts, EndOfProbe, ProbedModel
from gymfleet_env_server.sessions.episode import Episode
from gymfleet_env_server.sessions.limits import Limits
from gymfleet_env_server.sessions.world import World


def probe(entries: Mapping[str, Entry], limits: Limits, *, here: bool) -> dict[str, Any]:
    """Begin and close an episode of every environment that waits, or if `here`, of every other one.

    Without threads, `here` covers all of them. A probe ends where a model would be asked. Raises `ShardUnavailable`.
    """
    for name, entry in entries.items():
        if here == (entry.kind.is_blocking() and limits.threads is not None):
            continue
        split: Split | None = next((s for s in SPLITS if entry.spec.splits.get(s)), None)
        if split is None:
            raise ShardUnavailable(f"{name} has no task")
        probed = replace(entry, models=dict.fromkeys(entry.models, ProbedModel()), asked=AskCounts())
        task = entry.tasks.by_index(split, entry.spec.default_level, 0)
        episode = Episode("probe", World(probed, task, 0, limits, models=probed.model_calls(told=False)), limits)
        try:
            episode.begin()
        except EndOfProbe:
            continue
        except EnvironmentFailed as error:
            raise ShardUnavailable(f"a probe of {name} failed: {error.detail}") from None
        episode.close()
    return {}
