"""No group is taken with older weights than the run's newest. The Redis is real, the engine is not."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from gymfleet_contracts.rollout import GroupRequest, LivePolicy
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.streams import LIVE_POLICY, ROLLOUT_GROUP, ROLLOUT_REQUESTS
from gymfleet_kit.streams import RedisClient, StreamProducer
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_rollout.version_gate import VersionGate
from gymfleet_rollout.worker import Requests

from tests.fixtures.numbered_engine import World, numbered_weights


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(partial(numbered_weights, tmp_path))
    await made.policy.start()
    yield made
    await made.policy.close()


def requests(redis: RedisClient, newest: VersionGate, name: str = "a") -> Requests:
    return Requests(redis, RolloutSettings(model="m", consumer=name), newest)


async def announce(redis: RedisClient, version: int) -> None:
    await redis.set(LIVE_POLICY, LivePolicy(run_id="r", version=version).model_dump_json())


async def ask(redis: RedisClient) -> None:
    task = OpenSession(env="maze", task_index=0)
    await StreamProducer(redis, ROLLOUT_REQUESTS).publish(
        GroupRequest(run_id="r", group_id="g", task=task, num_samples=1)
    )


async def pending(redis: RedisClient) -> int:
    return int((await redis.xpending(ROLLOUT_REQUESTS, ROLLOUT_GROUP))["pending"])


async def test_without_a_run_groups_are_taken(redis: RedisClient, world: World) -> None:
    newest = VersionGate(redis, world.policy)
    await newest.look()
    await ask(redis)

    assert len(await requests(redis, newest).receive(1, 1000)) == 1
    assert newest.awaited == ""


async def test_with_an_older_version_they_are_left_until_the_newest_is_committed(
    redis: RedisClient, world: World
) -> None:
    newest = VersionGate(redis, world.policy)
    consumer = requests(redis, newest)
    await consumer.create_group()
    await announce(redis, 3)
    await ask(redis)
    await newest.look()

    left = await consumer.receive(1, 50)
    taken = asyncio.create_task(consumer.receive(1, 10_000))
    await world.policy.stage(world.body(2))
    await world.policy.commit(2)
    assert newest.awaited == "waiting for version 3 of run r from the trainer"
    await world.policy.stage(world.body(4))
    assert await pending(redis) == 0
    await world.policy.commit(4)

    assert left == []
    assert len(await taken) == 1
    assert newest.awaited == "", "a newer one than it asked for serves as well"


async def test_a_group_that_came_after_a_publish_is_given_back(redis: RedisClient, world: World) -> None:
    """The trainer begins while this replica, which it does not know of, waits for groups."""
    newest = VersionGate(redis, world.policy)
    consumer = requests(redis, newest)
    await consumer.create_group()
    await newest.look()
    await announce(redis, 1)
    await ask(redis)

    assert await consumer.receive(1, 1000) == []

    await redis.delete(LIVE_POLICY)
    other = VersionGate(redis, world.policy)
    await other.look()
    (delivery,) = await requests(redis, other, "b").receive(1, 5_000)
    assert delivery.attempt == 1, "it was not tried"


async def test_what_is_no_version_is_told_and_changes_nothing(redis: RedisClient, world: World) -> None:
    newest = VersionGate(redis, world.policy)
    await announce(redis, 2)
    await newest.look()
    await redis.set(LIVE_POLICY, b"\xff")

    await newest.look()

    assert "version 2" in newest.awaited
