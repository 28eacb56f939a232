"""Gateways that share a Redis know how many they are."""

import asyncio

from gymfleet_env_gateway.census import KEY, keep_counting
from gymfleet_kit.streams import RedisClient


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


async def until_last(told: list[int], number: int) -> None:
    for _ in range(200):
        if told[-1:] == [number]:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"told {told}, waited for {number}")
