"""Groups that are scored together, from the stream: at several replicas, in any order, more than once."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.reward import RewardSpec, ScoreRequest
from gymfleet_contracts.streams import HELD_GROUPS, TRAJECTORIES_RAW, held_group, trajectories_scored
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from gymfleet_kit.streams import Delivery, RedisClient, StreamProducer
from gymfleet_reward.composer import Scorer
from gymfleet_reward.settings import RewardSettings
from gymfleet_reward.worker import RewardWorker

from tests.fixtures.rewards import collect, make_spec
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.trajectories import make_trajectory

SIZE: Final = 4
RANK: Final = """
from gymfleet_reward.component import Component, ComponentOptions


class Rank(Component[ComponentOptions]):
    per = "group"

    def score_batch(self, episodes):
        return [sum(other.score < one.score for other in episodes) for one in episodes]
"""


@pytest.fixture
def rank(tmp_path: Path) -> str:
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return str(path)


@pytest.fixture
def spec(rank: str) -> RewardSpec:
    return make_spec(goal={"enabled": False}, rank={"use": rank})


@pytest.fixture
async def worker(redis: RedisClient, rank: str) -> AsyncIterator[RewardWorker]:
    scorer = Scorer([rank])
    with ThreadPoolExecutor(4) as threads:
        yield RewardWorker(redis, RewardSettings(group_wait_s=1.0), scorer, threads)
    scorer.close()


def record(
    spec: RewardSpec, sample: int, *, run_id: str = "run", group_id: str = "g", **changes: object
) -> ScoreRequest:
    """Sample n has the score n / 10, unless it is said to have another."""
    fields: dict[str, Any] = {"run_id": run_id, "group_id": group_id, "score": sample / 10, **changes}
    return ScoreRequest(trajectory=make_trajectory(sample=sample, **fields), reward=spec, num_samples=SIZE)


async def handle(worker: RewardWorker, *requests: ScoreRequest) -> None:
    for request in requests:
        await worker.handle(Delivery("1-1", 1, request, None))


async def on_the_stream(redis: RedisClient, run_id: str = "run") -> list[ScoredTrajectory]:
    entries: Any = await redis.xrange(trajectories_scored(run_id))
    return [ScoredTrajectory.model_validate_json(fields[b"body"]) for _, fields in entries]


def ranks(scored: list[ScoredTrajectory]) -> list[tuple[int, float | None]]:
    return [(one.trajectory.sample, None if one.reward is None else one.reward.total) for one in scored]


async def test_the_last_to_arrive_has_all_scored(worker: RewardWorker, redis: RedisClient, spec: RewardSpec) -> None:
    await handle(worker, record(spec, 2), record(spec, 0), record(spec, 3), record(spec, 2))
    assert await on_the_stream(redis) == []
    assert await redis.zcard(HELD_GROUPS) == 1
    assert await redis.ttl(held_group("run", "g")) > 24 * 3600 - 60, "a run may be paused for long"

    await handle(worker, record(spec, 1))

    assert ranks(await on_the_stream(redis)) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert not await redis.exists(held_group("run", "g"), HELD_GROUPS), "nothing stays behind"


async def test_a_group_waits_for_the_replacement_of_what_failed(
    worker: RewardWorker, redis: RedisClient, spec: RewardSpec
) -> None:
    broken = record(spec, 1, status=Status.ENV_ERROR, turns=(), error="it died")
    await handle(worker, record(spec, 0), broken, record(spec, 2), record(spec, 3))

    assert ranks(await on_the_stream(redis)) == [(1, None)], "the trainer knows at once"
    await handle(worker, record(spec, 1, replay=1, score=0.9))

    assert ranks(await on_the_stream(redis))[1:] == [(0, 0.0), (1, 3.0), (2, 1.0), (3, 2.0)]


async def test_what_was_played_later_replaces_what_is_held(
    worker: RewardWorker, redis: RedisClient, spec: RewardSpec
) -> None:
    await handle(worker, record(spec, 0, replay=2, score=1.0), record(spec, 0), record(spec, 1), record(spec, 2))
    await handle(worker, record(spec, 3))

    scored = await on_the_stream(redis)
    assert ranks(scored) == [(0, 3.0), (1, 0.0), (2, 1.0), (3, 2.0)]
    assert scored[0].trajectory.replay == 2


async def test_what_comes_while_a_group_is_scored_stays(
    worker: RewardWorker, redis: RedisClient, spec: RewardSpec
) -> None:
    first = [record(spec, sample) for sample in range(SIZE)]
    held = [await worker._groups.hold(request) for request in first]
    assert [records is not None for records in held] == [False, False, False, True]
    later = await worker._groups.hold(record(spec, 2, replay=1, score=1.0))
    assert later is not None, "it completes the group once more"

    await worker._groups.forget(first)

    assert list(await redis.hgetall(held_group("run", "g"))) == [b"2"]
    assert await redis.zcard(HELD_GROUPS) == 1
    await worker._groups.forget([record(spec, 2, replay=1, score=1.0)])
    assert not await redis.exists(held_group("run", "g"), HELD_GROUPS)


async def test_a_group_that_stays_incomplete_is_given_up(
    worker: RewardWorker, redis: RedisClient, spec: RewardSpec
) -> None:
    await handle(worker, record(spec, 0), record(spec, 3))
    assert await worker._groups.given_up() is None, "the rest may still come"
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))

    scored = await collect(redis, "run", 2)
    stop.set()
    await running

    assert ranks(scored) == [(0, None), (3, None)]
    assert "it has 4 episodes, here are the samples [0, 3]" in str(scored[0].reward_error)
    assert not await redis.exists(held_group("run", "g"), HELD_GROUPS)


async def test_what_is_not_known_to_be_of_a_group_does_not_wait(
    worker: RewardWorker, redis: RedisClient, spec: RewardSpec
) -> None:
    lonely = ScoreRequest(trajectory=make_trajectory(sample=0), reward=spec)
    beyond = [record(spec, SIZE), record(spec, SIZE + 1)]
    alone = ScoreRequest(trajectory=make_trajectory(sample=0, group_id="one"), reward=spec, num_samples=1)

    await handle(worker, lonely, *beyond, alone, record(RewardSpec(), 1))

    scored = await on_the_stream(redis)
    assert ranks(scored) == [(0, None), (SIZE, None), (SIZE + 1, None), (0, 0.0), (1, 1.0)]
    assert "must give the same num_samples" in str(scored[0].reward_error)


@pytest.fixture
def replicas(redis_url: str, rank: str, tmp_path: Path) -> Iterator[list[ServiceProcess]]:
    settings = {"redis_url": redis_url, "plugins": json.dumps([rank]), "lease_s": 1, "concurrency": 4}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", settings, tmp_path / f"log-{number}")
            )
            for number in range(2)
        ]


@pytest.mark.slow
async def test_a_killed_replica_loses_no_group(
    replicas: list[ServiceProcess], redis: RedisClient, spec: RewardSpec
) -> None:
    producer = StreamProducer(redis, TRAJECTORIES_RAW)
    names = [f"g{number}" for number in range(40)]
    for sample in (0, 2, 1):
        for name in names:
            await producer.publish(record(spec, sample, group_id=name, run_id="killed"))
    replicas[0].stop(signal.SIGKILL)
    for name in names:
        await producer.publish(record(spec, 3, group_id=name, run_id="killed"))

    found: dict[tuple[str, int], float | None] = {}
    async with asyncio.timeout(60):
        while len(found) < len(names) * SIZE:
            await asyncio.sleep(0.1)
            scored = await on_the_stream(redis, "killed")
            found = {
                (one.trajectory.group_id, one.trajectory.sample): None if one.reward is None else one.reward.total
                for one in scored
            }

    assert found == {(name, sample): float(sample) for name in names for sample in range(SIZE)}
    async with asyncio.timeout(30):
        while await redis.xlen(TRAJECTORIES_RAW):  # noqa: ASYNC110 - acknowledged after the publication
            await asyncio.sleep(0.05)
    assert not await redis.exists(f"{TRAJECTORIES_RAW}:dead")
