"""What `/metrics` says of the streams and their Redis, against a real one."""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

from gymfleet_kit.streams import RedisClient, RedisWatch, connect, disconnect
from prometheus_client.core import Metric

from tests.fixtures.redis_server import RedisServer

STREAM = "gymfleet:watched"


def values(metrics: Iterable[Metric]) -> dict[str, float]:
    return {
        f"{sample.name}{''.join(sorted(sample.labels.values()))}": sample.value
        for metric in metrics
        for sample in metric.samples
    }


async def test_streams_are_counted_with_their_dead_letters(redis: RedisClient) -> None:
    for _ in range(3):
        await redis.xadd(STREAM, {"body": "x"})
    await redis.xadd(f"{STREAM}:dead", {"body": "x"})

    found = values(await RedisWatch(redis, lambda: [STREAM, "gymfleet:never"]).measure())

    assert found["gymfleet_stream_backloggymfleet:watched"] == 3
    assert found["gymfleet_stream_dead_lettersgymfleet:watched"] == 1
    assert found["gymfleet_stream_backloggymfleet:never"] == 0
    assert found["gymfleet_redis_up"] == 1


async def test_durable_is_append_only_and_never_evicting(tmp_path: Path) -> None:
    with RedisServer(tmp_path, administrator=True) as server:
        client = connect(server.url)
        watch = RedisWatch(client, list)

        seen = [values(await watch.measure())["gymfleet_redis_durable"]]
        for name, value in (
            ("maxmemory-policy", "allkeys-lru"),
            ("maxmemory-policy", "noeviction"),
            ("appendonly", "no"),
        ):
            await client.config_set(name, value)
            seen.append(values(await watch.measure())["gymfleet_redis_durable"])
        await disconnect(client)

    assert seen == [1, 0, 1, 0]


async def test_durable_is_a_file_that_can_be_rewritten(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with RedisServer(data, administrator=True) as server:
        client = connect(server.url)
        shutil.rmtree(data)
        await client.execute_command("BGREWRITEAOF")  # type: ignore[no-untyped-call]  # the stubs lack it
        async with asyncio.timeout(30):
            while (await client.info("persistence"))["aof_last_bgrewrite_status"] == "ok":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        found = values(await RedisWatch(client, list).measure())
        await disconnect(client)

    assert found["gymfleet_redis_durable"] == 0


async def test_the_memory_limit_is_that_of_redis_or_of_its_machine(tmp_path: Path) -> None:
    with RedisServer(tmp_path, administrator=True) as server:
        client = connect(server.url)
        watch = RedisWatch(client, list)
        unlimited = values(await watch.measure())
        await client.config_set("maxmemory", 100 << 20)
        limited = values(await watch.measure())
        await disconnect(client)

    assert unlimited["gymfleet_redis_memory_limit_bytes"] > 200 << 20
    assert limited["gymfleet_redis_memory_limit_bytes"] == 100 << 20
    assert 0 < limited["gymfleet_redis_memory_bytes"] < 100 << 20


async def test_without_redis_there_are_no_old_figures(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        client = connect(server.url)
        watch = RedisWatch(client, lambda: [STREAM])
        before = values(await watch.measure())
    after = values(await watch.measure())
    await disconnect(client)

    assert len(before) == 6
    assert after == {"gymfleet_redis_up": 0}
