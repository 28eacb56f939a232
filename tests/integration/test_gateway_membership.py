"""Gateways that share a Redis know how many they are."""

import asyncio

from gymfleet_env_gateway.gateway_membership import KEY, keep_counting
from gymfleet_kit.streams import RedisClient
from gymfleet_kit.streams.connection import connect, disconnect


async def test_gateways_come_and_go(redis: RedisClient) -> None:
    told: dict[str, list[int]] = {"first": [], "second": []}
    first = asyncio.create_task(keep_counting(redis, told["first"].append))
    await asyncio.sleep(0.3)
    second = asyncio.create_task(keep_counting(redis, told["second"].append))
    await until_last(told["first"], 2)
    assert told["second"] == [2] * len(told["second"])

    second.cancel()
    await asyncio.wait([second])
    await until_last(told["first"], 1)
    assert 0 < await redis.pttl(KEY) <= 7000, "the last one leaves nothing behind"
    first.cancel()
    await asyncio.wait([first])
    assert await redis.keys("*") == []


async def test_a_gateway_that_ends_leaves_no_task_behind_when_redis_is_slow(redis: RedisClient, redis_url: str) -> None:
    """A task that goes on after the client is closed opens a connection again, and nobody closes that."""
    others = asyncio.all_tasks()
    own = connect(redis_url)
    told: list[int] = []
    counting = asyncio.create_task(keep_counting(own, told.append))
    await until_last(told, 1)
    await redis.execute_command("CLIENT", "PAUSE", 1500, "ALL")  # type: ignore[no-untyped-call]  # the stubs lack it
    counting.cancel()
    await asyncio.wait([counting])
    await disconnect(own)
    assert asyncio.all_tasks() <= others


async def until_last(told: list[int], number: int) -> None:
    for _ in range(200):
        if told[-1:] == [number]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"told {told}, waited for {number}")
