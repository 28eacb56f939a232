"""The stream worker: it takes group requests and puts out one raw trajectory per sample."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.streams import (
    BODY_FIELD,
    MAX_SEARCH_TREES,
    ROLLOUT_GROUP,
    ROLLOUT_REQUESTS,
    TRAJECTORIES_RAW,
    cancelled_run,
    produced_samples,
    search_trees,
)
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.streams import OUTAGE, Delivery, RedisClient, StreamConsumer, StreamProducer

from gymfleet_rollout import metrics
from gymfleet_rollout.player import Player
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_rollout.version_gate import VersionGate

log = structlog.get_logger()

_PRODUCED_TTL_S: Final = 24 * 3600
_WHOLE: Final = "whole"
"""Recorded with the samples of a group that was played together."""


_TREE: Final = "tree"
_ADD_TREE: Final = """
if redis.call('SADD', KEYS[2], ARGV[1]) == 0 then return 0 end
redis.call('EXPIRE', KEYS[2], ARGV[5])
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[2], '*', ARGV[3], ARGV[4])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return 1
"""
"""Adds a record and trims the stream, unless the record is there already."""


class Output:
    """The raw stream, which has a sample at most once for each time it was requested."""

    def __init__(self, redis: RedisClient, *, max_len: int) -> None:
        self._redis = redis
        self._producer = StreamProducer(redis, TRAJECTORIES_RAW, max_len=max_len)
        self._add_tree = redis.register_script(_ADD_TREE)

    async def missing(self, group: GroupRequest) -> list[int]:
        """Return the requested samples that no earlier delivery of the request has published."""
        members = await self._redis.smembers(produced_samples(group.run_id, group.group_id))
        if group.samples is None and _member(_WHOLE, group.replay).encode() in members:
            return []
        return [sample for sample in group.wanted if _member(sample, group.replay).encode() not in members]

    async def put(self, group: GroupRequest, trajectories: Sequence[Trajectory]) -> None:
        """Publish trajectories together; waits while the reward service is behind. Raises StreamFull."""
        key = produced_samples(group.run_id, group.group_id)
        members = [_member(trajectory.sample, group.replay) for trajectory in trajectories]
        if group.samples is None and trajectories[0].group_size is not None:
            # The number of samples may differ from the requested one: without this, the rest would seem missing.
            members.append(_member(_WHOLE, group.replay))
        requests = [
            ScoreRequest(
                trajectory=trajectory, reward=group.reward, num_samples=trajectory.group_size or group.num_samples
            )
            for trajectory in trajectories
        ]
        if await self._producer.publish_once(requests, key=key, members=members):
            await self._redis.expire(key, _PRODUCED_TTL_S)
        else:
            dropped = [trajectory.trajectory_id for trajectory in trajectories]
            log.info("samples.dropped", trajectory_ids=dropped, reason="already produced")

    async def put_tree(self, tree: SearchTree) -> None:
        """Publish the record of a search, once for each time that its group was requested.

        The record is for people to look at: if Redis is away, it is dropped, and the group goes on without it.
        """
        keys = [search_trees(tree.run_id), produced_samples(tree.run_id, tree.group_id)]
        arguments: list[str | int] = [
            _member(_TREE, tree.replay),
            MAX_SEARCH_TREES,
            BODY_FIELD,
            tree.model_dump_json(),
            _PRODUCED_TTL_S,
        ]
        try:
            await self._add_tree(keys=keys, args=arguments)
        except OUTAGE as error:
            log.warning("tree.dropped", run_id=tree.run_id, group_id=tree.group_id, error=str(error))

    async def is_cancelled(self, run_id: str) -> bool:
        """Return whether the run was stopped for good."""
        return bool(await self._redis.exists(cancelled_run(run_id)))


def _member(sample: int | str, replay: int) -> str:
    return f"{sample}.{replay}" if replay else str(sample)


class Requests(StreamConsumer[GroupRequest]):
    """The request stream, from which nothing is taken while this process waits for the newest policy version."""

    def __init__(self, redis: RedisClient, settings: RolloutSettings, gate: VersionGate) -> None:
        super().__init__(
            redis,
            ROLLOUT_REQUESTS,
            ROLLOUT_GROUP,
            GroupRequest,
            consumer=settings.consumer,
            lease_s=settings.lease_s,
            max_attempts=settings.max_deliveries,
        )
        self._gate = gate

    async def receive(self, count: int, block_ms: int) -> list[Delivery[GroupRequest]]:
        """Do as `StreamConsumer.receive`, but while the newest version is missing, wait for it instead."""
        if not await self._gate.here_within(block_ms / 1000):
            return []
        deliveries = await super().receive(count, block_ms)
        if deliveries:
            await self._gate.look()  # the trainer may have published a version while this waited for groups
            if self._gate.awaited:
                await self.release(deliveries)
                return []
        return deliveries


class RolloutWorker:
    """Play the groups of the request stream. A group is acknowledged when all its samples are published."""

    def __init__(self, settings: RolloutSettings, requests: Requests, player: Player, output: Output) -> None:
        self._settings = settings
        self._player = player
        self._output = output
        self._requests = requests

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set and the samples of all received groups are published."""
        await self._requests.run(self.handle, concurrency=self._settings.max_groups, stop=stop)

    async def handle(self, delivery: Delivery[GroupRequest]) -> None:
        """Play the missing samples of the group."""
        group = delivery.body
        if await self._output.is_cancelled(group.run_id):
            metrics.GROUPS.labels("cancelled").inc()
            return
        missing = await self._output.missing(group)
        await self._player.play(group, missing, partial(self._output.put, group), self._output.put_tree)
        metrics.GROUPS.labels("played").inc()
