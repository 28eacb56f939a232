"""kill -9 of the rollout service in mid-group: every sample of every group comes out, none twice."""

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.rollout import EpisodeLimits, GroupRequest, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.streams import ROLLOUT_REQUESTS, TRAJECTORIES_RAW, search_trees
from gymfleet_kit.streams import RedisClient, StreamProducer, connect, disconnect

from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RUN, NUM_GROUPS, NUM_SAMPLES = "kill-rollout", 12, 8
TOTAL = NUM_GROUPS * NUM_SAMPLES
OBSERVER = "observer"
"""A consumer group that reads nothing: what the others have acknowledged stays in the stream for it."""
TIMEOUT_S = 120.0


async def produced(redis: RedisClient, run: str = RUN) -> list[str]:
    entries: Any = await redis.xrange(TRAJECTORIES_RAW)
    requests = [ScoreRequest.model_validate_json(fields[b"body"]) for _, fields in entries]
    return [r.trajectory.trajectory_id for r in requests if r.trajectory.run_id == run]


async def wait_for(redis: RedisClient, count: int, run: str = RUN) -> list[str]:
    async with asyncio.timeout(TIMEOUT_S):
        while len(ids := await produced(redis, run)) < count:  # noqa: ASYNC110 - another process adds
            await asyncio.sleep(0.02)
    return ids


async def test_a_killed_rollout_service_loses_nothing_and_repeats_nothing(maze_fleet: Fleet) -> None:
    redis = connect(maze_fleet.redis.url)
    # Episodes of different lengths, so that groups are half out when the blow falls.
    limits = [EpisodeLimits(max_turns=1 + 4 * (place % 3), max_response_tokens=12) for place in range(NUM_GROUPS)]
    await redis.xgroup_create(TRAJECTORIES_RAW, OBSERVER, id="$", mkstream=True)
    try:
        producer = StreamProducer(redis, ROLLOUT_REQUESTS)
        for place in range(NUM_GROUPS):
            task = OpenSession(env="maze", task_index=place)
            request = GroupRequest(
                run_id=RUN, group_id=f"g{place}", task=task, num_samples=NUM_SAMPLES,
                limits=limits[place].model_copy(update={"max_context_tokens": 1024}),
            )  # fmt: skip
            await producer.publish(request)

        before = await wait_for(redis, 1)
        maze_fleet.rollout.stop(signal.SIGKILL)
        at_death = len(await produced(redis))
        maze_fleet.rollout.start()
        await asyncio.to_thread(maze_fleet.rollout.wait_ready)
        await wait_for(redis, TOTAL)
        async with asyncio.timeout(TIMEOUT_S):
            while await redis.xlen(ROLLOUT_REQUESTS):  # noqa: ASYNC110 - another process takes
                await asyncio.sleep(0.05)
        ids = await produced(redis)
    finally:
        await redis.xgroup_destroy(TRAJECTORIES_RAW, OBSERVER)
        await disconnect(redis)

    assert 0 < len(before) <= at_death < TOTAL, "killed in the middle of the work"
    assert Counter(ids) == Counter(f"{RUN}/g{place}/{n}" for place in range(NUM_GROUPS) for n in range(NUM_SAMPLES))


async def test_searches_that_a_kill_ended_are_made_anew(maze_fleet: Fleet) -> None:
    redis, run, num_searches = connect(maze_fleet.redis.url), "kill-search", 24
    search = StrategySpec(use="tree_of_thoughts", options={"children": 3, "width": 3, "value": "votes"})
    await redis.xgroup_create(TRAJECTORIES_RAW, OBSERVER, id="$", mkstream=True)
    try:
        producer = StreamProducer(redis, ROLLOUT_REQUESTS)
        for place in range(num_searches):
            limits = EpisodeLimits(max_turns=1 + place % 6, max_response_tokens=12, max_context_tokens=1024)
            await producer.publish(
                GroupRequest(
                    run_id=run, group_id=f"g{place}", task=OpenSession(env="maze", task_index=place), num_samples=1,
                    limits=limits, strategy=search,
                )
            )  # fmt: skip
        await wait_for(redis, 1, run)
        maze_fleet.rollout.stop(signal.SIGKILL)
        at_death = len(await produced(redis, run))
        maze_fleet.rollout.start()
        await asyncio.to_thread(maze_fleet.rollout.wait_ready)
        await wait_for(redis, num_searches, run)
        async with asyncio.timeout(TIMEOUT_S):
            while await redis.xlen(ROLLOUT_REQUESTS):  # noqa: ASYNC110 - another process takes
                await asyncio.sleep(0.05)
        ids = await produced(redis, run)
        kept: Any = await redis.xrange(search_trees(run))
    finally:
        await redis.xgroup_destroy(TRAJECTORIES_RAW, OBSERVER)
        await disconnect(redis)

    assert 0 < at_death < num_searches, "killed in the middle of the work"
    assert Counter(ids) == Counter(f"{run}/g{place}/0" for place in range(num_searches))
    trees = [SearchTree.model_validate_json(fields[b"body"]) for _, fields in kept]
    assert {tree.group_id for tree in trees} == {f"g{place}" for place in range(num_searches)}
    assert len(trees) <= num_searches + at_death + 1, "one that was delivered before its episode may be there twice"
