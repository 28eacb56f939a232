"""Scripts over one kept connection: whose answer is whose, and what a restart of Redis does."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymfleet_kit.streams import connect, disconnect
from gymfleet_kit.streams.script_line import Script, ScriptLine
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tests.fixtures.ports import free_port
from tests.fixtures.redis_server import RedisServer

ECHO = Script("return ARGV[1]")
SLOW = Script(
    "local ends = redis.call('TIME')[1] + 2 repeat until tonumber(redis.call('TIME')[1]) >= ends return 'slow'"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as server:
        yield server


async def test_calls_that_come_together_each_get_their_own_answer(server: RedisServer) -> None:
    redis = connect(server.url)
    line = ScriptLine(redis)

    answers = await asyncio.gather(*(line.call(ECHO, ["key"], [str(number)]) for number in range(50)))

    assert answers == [str(number).encode() for number in range(50)]
    assert len(await redis.client_list()) == 2, "its own connection, and the one that asks"
    await disconnect(redis)


async def test_an_answer_that_nobody_waits_for_any_more_goes_to_nobody_else(server: RedisServer) -> None:
    redis = connect(server.url)
    line = ScriptLine(redis)
    await line.call(ECHO, [], ["warm"])

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await line.call(SLOW, [], [])

    assert await line.call(ECHO, [], ["next"]) == b"next"
    await disconnect(redis)


async def test_a_script_that_fails_says_so_and_the_next_one_runs(server: RedisServer) -> None:
    redis = connect(server.url)
    line = ScriptLine(redis)

    with pytest.raises(ResponseError, match="Wrong number of args"):
        await line.call(Script("return redis.call('GET')"), [], [])

    assert await line.call(ECHO, [], ["next"]) == b"next"
    await disconnect(redis)


async def test_scripts_are_told_again_to_a_redis_that_was_restarted(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    redis = connect(server.url)
    line = ScriptLine(redis)
    assert await line.call(ECHO, [], ["before"]) == b"before"

    server.stop(signal.SIGKILL)
    with pytest.raises(RedisConnectionError):
        await line.call(ECHO, [], ["meanwhile"])
    server.start()
    try:
        assert await line.call(ECHO, [], ["after"]) == b"after"
        server.stop(signal.SIGKILL)
        server.start()
        assert await line.call(ECHO, [], ["at once"]) == b"at once", "the dead connection is tried once more, anew"
    finally:
        server.stop(signal.SIGKILL)
        await disconnect(redis)


async def test_without_redis_it_is_a_connection_error() -> None:
    redis = connect(f"redis://127.0.0.1:{free_port()}")

    with pytest.raises(RedisConnectionError):
        await ScriptLine(redis).call(ECHO, [], ["x"])
    await disconnect(redis)
