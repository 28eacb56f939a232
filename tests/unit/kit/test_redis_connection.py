"""A connection to Redis, as far as it differs from redis-py's own: what ends a command, and what a command costs."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from gymfleet_kit.streams import RedisClient, connect, connection, disconnect
from redis.exceptions import TimeoutError as RedisTimeoutError

from tests.fixtures.redis_server import RedisServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


@pytest.mark.parametrize("connected", [False, True])
async def test_no_cancellation_is_swallowed_at_whatever_moment_it_comes(server: RedisServer, connected: bool) -> None:
    redis = connect(server.url)
    ended = 0

    for ticks in range(20):
        if connected:
            await redis.ping()
        else:
            await disconnect(redis)
        command = asyncio.create_task(_written(redis))
        for _ in range(ticks):
            await asyncio.sleep(0)
        if command.cancel():
            with pytest.raises(asyncio.CancelledError):
                await command
            ended += 1

    assert ended >= 2, "before and after it was sent"
    await redis.set("key", "other")
    assert await redis.get("key") == b"other", "no answer is left over"
    await disconnect(redis)


async def _written(redis: RedisClient) -> None:
    await redis.set("key", "value")


async def test_a_command_makes_no_task(server: RedisServer) -> None:
    redis = connect(server.url)
    await redis.ping()
    made = Mock(wraps=asyncio.Task)
    asyncio.get_running_loop().set_task_factory(lambda loop, work, **options: made(work, loop=loop, **options))

    await redis.ping()

    made.assert_not_called()
    await disconnect(redis)


async def test_a_command_that_cannot_be_sent_ends_in_time(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SOCKET_TIMEOUT_S", 1.5)
    redis = connect(server.url)
    await redis.ping()
    os.kill(server.pid, signal.SIGSTOP)

    with pytest.raises(RedisTimeoutError):
        await redis.set("key", b"x" * 50_000_000)

    os.kill(server.pid, signal.SIGCONT)
    while len(await redis.client_list()) > 1:  # noqa: ASYNC110 - until what was sent of it is read
        await asyncio.sleep(0.02)
    await disconnect(redis)
