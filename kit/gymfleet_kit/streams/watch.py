"""Metrics of the streams and their Redis, read when Prometheus scrapes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import structlog
from gymfleet_contracts.streams import dead_letters
from prometheus_client.core import GaugeMetricFamily
from redis.exceptions import RedisError

from gymfleet_kit.streams.connection import RedisClient

log = structlog.get_logger()

TIMEOUT_S: Final = 2.0


class RedisWatch:
    """Read the metrics with two round trips per scrape. If Redis does not answer, there are none instead of old ones.

    Args:
        streams: returns the names of the streams to watch; called at every scrape.
    """

    def __init__(self, redis: RedisClient, streams: Callable[[], Iterable[str]]) -> None:
        self._redis: Any = redis  # the published stubs lack half of the pipeline
        self._streams = streams

    async def measure(self) -> list[GaugeMetricFamily]:
        """Return metrics of the streams and the server, or only `gymfleet_redis_up` = 0 if Redis does not answer."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = [*await self._measure_streams(), *_server(await self._redis.info())]
        except (RedisError, TimeoutError) as error:
            log.warning("redis.unmeasured", error=f"{type(error).__name__}: {error}")
            found = []
        return [GaugeMetricFamily("gymfleet_redis_up", "1 while Redis answers", bool(found)), *found]

    async def _measure_streams(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        streams = list(self._streams())
        async with self._redis.pipeline(transaction=False) as pipe:
            for stream in streams:
                pipe.xlen(stream)
                pipe.xlen(dead_letters(stream))
            lengths = await pipe.execute()
        backlog = GaugeMetricFamily("gymfleet_stream_backlog", "Entries not yet acknowledged", labels=["stream"])
        dead = GaugeMetricFamily(
            "gymfleet_stream_dead_letters", "Messages that could not be handled", labels=["stream"]
        )
        for stream, entries, letters in zip(streams, lengths[::2], lengths[1::2], strict=True):
            backlog.add_metric([stream], entries)
            dead.add_metric([stream], letters)
        return backlog, dead


def _server(info: dict[str, Any]) -> Iterator[GaugeMetricFamily]:
    yield GaugeMetricFamily("gymfleet_redis_memory_bytes", "Memory that Redis uses", info["used_memory"])
    yield GaugeMetricFamily(
        "gymfleet_redis_memory_limit_bytes",
        "Its maxmemory, else its machine's memory",
        info["maxmemory"] or info["total_system_memory"],
    )
    durable = (
        info["aof_enabled"] == 1
        and info["aof_last_write_status"] == info["aof_last_bgrewrite_status"] == "ok"
        and info["maxmemory_policy"] == "noeviction"
    )
    yield GaugeMetricFamily("gymfleet_redis_durable", "1 while what it takes survives restarts and stays", durable)
