"""The store that fronts share: one suite over a process's memory and a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.store import MemoryStore, RedisStore, Store, StoreFull
from gymfleet_kit.streams import RedisClient, connect, disconnect

from tests.fixtures.redis_server import RedisServer

LONG_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[RedisClient]:
    client = connect(server.url)
    await client.flushdb()
    yield client
    await disconnect(client)


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis: RedisClient) -> Store:
    return MemoryStore() if request.param == "memory" else RedisStore(redis, "test")


async def test_an_entry_is_kept_replaced_and_deleted(store: Store) -> None:
    assert await store.get("a") is None
    assert await store.add("a", b"1", ttl_s=LONG_S, limit=9)
    assert not await store.add("a", b"2", ttl_s=LONG_S, limit=9), "the key is taken"
    assert await store.get("a") == b"1"
    assert await store.set("a", b"3", ttl_s=LONG_S)
    assert (await store.get("a"), await store.keys()) == (b"3", ["a"])
    assert [await store.delete("a") for _ in range(2)] == [True, False]
    assert (await store.get("a"), await store.keys()) == (None, [])


async def test_what_was_deleted_is_not_brought_back(store: Store) -> None:
    await store.add("a", b"1", ttl_s=LONG_S, limit=9)
    await store.delete("a")

    assert not await store.set("a", b"2", ttl_s=LONG_S)
    assert await store.get("a") is None


async def test_entries_end_and_make_room(store: Store) -> None:
    await store.add("short", b"", ttl_s=0.05, limit=2)
    await store.add("long", b"", ttl_s=LONG_S, limit=2)
    with pytest.raises(StoreFull):
        await store.add("more", b"", ttl_s=LONG_S, limit=2)

    await asyncio.sleep(0.1)

    assert not await store.set("short", b"", ttl_s=LONG_S)
    assert await store.keys() == ["long"]
    assert await store.add("more", b"", ttl_s=LONG_S, limit=2)


async def test_a_set_prolongs_the_life_and_a_get_does_not() -> None:
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    await store.add("a", b"", ttl_s=10, limit=9)

    now = 9.0
    assert await store.get("a") is not None
    assert await store.set("a", b"", ttl_s=10)
    now = 18.0
    assert await store.get("a") is not None
    now = 19.0
    assert await store.get("a") is None


async def test_nothing_in_redis_is_without_an_end(redis: RedisClient) -> None:
    store = RedisStore(redis, "test")
    await store.add("a", b"", ttl_s=LONG_S, limit=9)
    await store.add("b", b"", ttl_s=1, limit=9)
    await store.set("b", b"", ttl_s=2)

    async with store.lock("a"):
        keys = [key async for key in redis.scan_iter()]
        lives = {key.decode(): await redis.pttl(key) for key in keys}

    assert set(lives) == {f"gymfleet:gateway:test{key}" for key in ("", ":a", ":a:lock", ":b")}
    assert all(0 < life <= LONG_S * 1000 for life in lives.values())
    assert lives["gymfleet:gateway:test"] > 50_000, "the index outlives its longest entry"


async def test_a_lock_has_one_holder(store: Store) -> None:
    holders = 0
    most = 0

    async def hold() -> None:
        nonlocal holders, most
        async with store.lock("a"):
            holders += 1
            most = max(most, holders)
            await asyncio.sleep(0.002)
            holders -= 1

    await asyncio.gather(*(hold() for _ in range(10)))
    async with store.lock("a"), store.lock("b"):
        pass  # another key's lock is free

    assert most == 1


async def test_a_lock_is_freed_by_a_failure_and_waits_for_the_dead(
    redis: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymfleet_env_gateway.store._LOCK_WAIT_S", 0.05)
    store = RedisStore(redis, "test")
    with pytest.raises(ZeroDivisionError):
        async with store.lock("a"):
            raise ZeroDivisionError
    await redis.set("gymfleet:gateway:test:a:lock", b"of a gateway that died", px=300)

    with pytest.raises(Unavailable, match="still running"):
        async with store.lock("a"):
            pass
    monkeypatch.setattr("gymfleet_env_gateway.store._LOCK_WAIT_S", 30.0)
    async with store.lock("a"):
        assert await redis.get("gymfleet:gateway:test:a:lock") != b"of a gateway that died"


async def test_a_held_lock_is_renewed(redis: RedisClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_env_gateway.store._LOCK_S", 0.6)
    store = RedisStore(redis, "test")

    async with store.lock("a"):
        token = await redis.get("gymfleet:gateway:test:a:lock")
        await asyncio.sleep(1.5)
        assert await redis.get("gymfleet:gateway:test:a:lock") == token
    assert await redis.get("gymfleet:gateway:test:a:lock") is None


async def test_a_redis_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    client = connect(server.url)
    store = RedisStore(client, "test")

    with pytest.raises(Unavailable, match="Redis"):
        await store.get("a")
    with pytest.raises(Unavailable, match="Redis"):
        async with store.lock("a"):
            pass
    await disconnect(client)
