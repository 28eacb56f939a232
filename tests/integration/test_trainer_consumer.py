"""The trainer's end of the scored stream, over a real Redis."""

import asyncio
import time
from typing import Any

import pytest
from gymfleet_contracts.streams import TRAINER_GROUP, trajectories_scored
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.streams import RedisClient, StreamProducer
from gymfleet_trainer.run.trajectory_consumer import TrajectoryConsumer

from tests.fixtures.scored import RUN_ID, make_scored


@pytest.fixture
def producer(redis: RedisClient) -> StreamProducer:
    return StreamProducer(redis, trajectories_scored(RUN_ID))


async def receive_all(consumer: TrajectoryConsumer, count: int) -> list[ScoredTrajectory]:
    received: list[ScoredTrajectory] = []
    async with asyncio.timeout(10):
        while len(received) < count:
            received += await consumer.receive(0.05)
    return received


async def pending(redis: RedisClient) -> int:
    commands: Any = redis  # the published stubs know half of the stream commands
    summary = await commands.xpending(trajectories_scored(RUN_ID), TRAINER_GROUP)
    return int(summary["pending"])


async def test_nothing_is_acknowledged_until_it_is_settled(redis: RedisClient, producer: StreamProducer) -> None:
    async with TrajectoryConsumer(redis, RUN_ID, lease_s=5) as consumer:
        for group in ("a", "b"):
            for sample in range(2):
                await producer.publish(make_scored(group, sample))
        await receive_all(consumer, 4)
        assert await pending(redis) == 4

        acknowledged = await consumer.acknowledge(lambda group_id: group_id == "b")

        assert acknowledged == 2
        assert await pending(redis) == 2
        assert consumer.num_held == 2


async def test_a_restarted_trainer_gets_what_it_held_at_once(redis: RedisClient, producer: StreamProducer) -> None:
    async with TrajectoryConsumer(redis, RUN_ID, lease_s=600) as killed:
        for sample in range(3):
            await producer.publish(make_scored("a", sample))
        await receive_all(killed, 3)
    await producer.publish(make_scored("b", 0))  # meanwhile

    started = time.monotonic()
    async with TrajectoryConsumer(redis, RUN_ID, lease_s=600) as restarted:
        received = await receive_all(restarted, 4)

    assert time.monotonic() - started < 60, "not only after the lease of the dead process"
    assert sorted(s.trajectory.trajectory_id for s in received) == [
        f"{RUN_ID}/a/0", f"{RUN_ID}/a/1", f"{RUN_ID}/a/2", f"{RUN_ID}/b/0",
    ]  # fmt: skip


async def test_being_restarted_often_buries_nothing(redis: RedisClient, producer: StreamProducer) -> None:
    await producer.publish(make_scored("a", 0))

    for _ in range(8):
        async with TrajectoryConsumer(redis, RUN_ID, lease_s=600) as consumer:
            assert len(await receive_all(consumer, 1)) == 1

    assert await pending(redis) == 1


async def test_leases_hold_while_another_thread_computes(redis: RedisClient, producer: StreamProducer) -> None:
    await producer.publish(make_scored("a", 0))
    async with TrajectoryConsumer(redis, RUN_ID, lease_s=0.3) as consumer:
        await receive_all(consumer, 1)
        await asyncio.to_thread(time.sleep, 0.9)  # an update that takes three leases

        claimed = await redis.xautoclaim(
            trajectories_scored(RUN_ID), TRAINER_GROUP, "thief", min_idle_time=300, start_id="0-0"
        )

    assert claimed[1] == []


async def test_an_entry_that_is_delivered_twice_is_handed_out_once(
    redis: RedisClient, producer: StreamProducer
) -> None:
    await producer.publish(make_scored("a", 0))
    async with TrajectoryConsumer(redis, RUN_ID, lease_s=0.05) as consumer:
        received = await receive_all(consumer, 1)
        for _ in range(5):
            received += await consumer.receive(0.1)

    assert len(received) == 1
