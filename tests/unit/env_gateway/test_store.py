"""The store that fronts share: one suite over a process's memory and a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.redis_store import RedisStore
from gymfleet_env_gateway.store import MemoryStore, NoEntry, Store, StoreFull
from gymfleet_kit.streams import RedisClient, connect, disconnect

from tests.fixtures.redis_server import RedisServer

LONG_S = 60.0
MODULE = "gymfleet_env_gateway.redis_store"


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


async def put(store: Store, key: str, value: bytes, *, ttl_s: float = LONG_S) -> None:
    async with store.hold(key, ttl_s=ttl_s) as held:
        held.value = value


async def test_an_entry_is_kept_replaced_and_deleted(store: Store) -> None:
    assert await store.get("a") is None
    assert await store.add("a", b"1", ttl_s=LONG_S, limit=9)
    assert not await store.add("a", b"2", ttl_s=LONG_S, limit=9), "the key is taken"
    assert await store.get("a") == b"1"
    await put(store, "a", b"3")
    assert (await store.get("a"), await store.keys()) == (b"3", ["a"])
    assert [await store.delete("a") for _ in range(2)] == [True, False]
    assert (await store.get("a"), await store.keys()) == (None, [])


async def test_what_was_deleted_is_not_brought_back(store: Store) -> None:
    await store.add("a", b"1", ttl_s=LONG_S, limit=9)
    async with store.hold("a", ttl_s=LONG_S) as held:
        await store.delete("a")
        held.value = b"2"

    assert await store.get("a") is None
    with pytest.raises(NoEntry):
        await put(store, "a", b"2")


async def test_entries_end_and_make_room(store: Store) -> None:
    await store.add("short", b"", ttl_s=0.05, limit=2)
    await store.add("long", b"", ttl_s=LONG_S, limit=2)
    for limit in (2, 1):
        with pytest.raises(StoreFull):
            await store.add("more", b"", ttl_s=LONG_S, limit=limit)

    await asyncio.sleep(0.1)

    with pytest.raises(NoEntry):
        await put(store, "short", b"")
    assert await store.keys() == ["long"]
    assert await store.add("more", b"", ttl_s=LONG_S, limit=2)


async def test_a_hold_prolongs_the_life_and_a_get_does_not() -> None:
    now = 0.0
    store = MemoryStore(clock=lambda: now)
    await store.add("a", b"", ttl_s=10, limit=9)

    now = 9.0
    assert await store.get("a") is not None
    await put(store, "a", b"", ttl_s=10)
    now = 18.0
    assert await store.get("a") is not None
    now = 19.0
    assert await store.get("a") is None


async def test_nothing_in_redis_is_without_an_end(redis: RedisClient) -> None:
    store = RedisStore(redis, "test")
    await store.add("a", b"", ttl_s=LONG_S, limit=9)
    await store.add("b", b"", ttl_s=1, limit=9)
    await put(store, "b", b"", ttl_s=2)

    async with store.hold("a", ttl_s=LONG_S):
        keys = [key async for key in redis.scan_iter()]
        lives = {key.decode(): await redis.pttl(key) for key in keys}

    assert set(lives) == {f"gymfleet:gateway:test{key}" for key in ("", ":a", ":a:lock", ":b")}
    assert all(0 < life <= LONG_S * 1000 for life in lives.values())
    assert lives["gymfleet:gateway:test"] > 50_000, "the index outlives its longest entry"


async def test_an_entry_has_one_holder(store: Store) -> None:
    for key in "ab":
        await store.add(key, b"0", ttl_s=LONG_S, limit=9)
    holders = 0
    most = 0

    async def hold() -> None:
        nonlocal holders, most
        async with store.hold("a", ttl_s=LONG_S) as held:
            holders += 1
            most = max(most, holders)
            await asyncio.sleep(0.002)
            held.value = str(int(held.value) + 1).encode()
            holders -= 1

    await asyncio.gather(*(hold() for _ in range(10)))
    async with store.hold("a", ttl_s=LONG_S) as held, store.hold("b", ttl_s=LONG_S):
        pass  # another key is free

    assert (most, held.value) == (1, b"10"), "each sees what the one before left"


async def test_a_holder_that_fails_keeps_what_it_made_and_lets_go(store: Store) -> None:
    await store.add("a", b"1", ttl_s=LONG_S, limit=9)

    async def fail() -> None:
        async with store.hold("a", ttl_s=LONG_S, intent=b"divide") as held:
            held.value = b"2"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()

    async with store.hold("a", ttl_s=LONG_S) as held:
        assert (held.value, held.left) == (b"2", b"")


async def test_the_dead_are_waited_for_and_say_what_they_were_about_to_do(
    redis: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{MODULE}._LOCK_WAIT_S", 0.05)
    monkeypatch.setattr(f"{MODULE}._LOCK_S", 0.3)
    store = RedisStore(redis, "test")
    await store.add("a", b"1", ttl_s=LONG_S, limit=9)
    dying = RedisStore(redis, "test")
    await dying._take("a", "of a gateway that dies", b"step")

    with pytest.raises(Unavailable, match="still running"):
        await put(store, "a", b"2")
    monkeypatch.setattr(f"{MODULE}._LOCK_WAIT_S", 30.0)
    async with store.hold("a", ttl_s=LONG_S, intent=b"another") as held:
        assert (held.value, held.left) == (b"1", b"step")
    async with store.hold("a", ttl_s=LONG_S) as held:
        assert held.left == b"", "told once: the value says what follows"


async def test_the_first_intent_stands_until_somebody_has_seen_it(
    redis: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two gateways die, one after the other: what the first was about to do is what may have been done."""
    monkeypatch.setattr(f"{MODULE}._LOCK_S", 0.05)
    store = RedisStore(redis, "test")
    await store.add("a", b"1", ttl_s=LONG_S, limit=9)
    await store._take("a", "first", b"step")
    await store._take("a", "second", b"another")

    async with store.hold("a", ttl_s=LONG_S) as held:
        assert held.left == b"step"


async def test_who_lost_the_entry_to_another_overwrites_nothing(redis: RedisClient) -> None:
    store = RedisStore(redis, "test")
    await store.add("a", b"1", ttl_s=LONG_S, limit=9)
    async with store.hold("a", ttl_s=LONG_S) as late:
        await redis.set("gymfleet:gateway:test:a:lock", b"another", px=60_000)  # it stalled for too long
        late.value = b"2"

    assert await store.get("a") == b"1"
    assert await redis.get("gymfleet:gateway:test:a:lock") == b"another"


async def test_a_held_entry_stays_held(redis: RedisClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}._LOCK_S", 0.6)
    store = RedisStore(redis, "test")
    await store.add("a", b"1", ttl_s=LONG_S, limit=9)

    async with store.hold("a", ttl_s=LONG_S):
        token = await redis.get("gymfleet:gateway:test:a:lock")
        await asyncio.sleep(1.5)
        assert await redis.get("gymfleet:gateway:test:a:lock") == token
    assert await redis.get("gymfleet:gateway:test:a:lock") is None


async def test_a_call_costs_two_trips_and_calls_at_once_share_them(redis: RedisClient) -> None:
    store = RedisStore(redis, "test")
    for number in range(8):
        await store.add(str(number), b"", ttl_s=LONG_S, limit=9)
    await put(store, "0", b"")  # Redis knows the script from now on

    async def script_calls() -> int:
        return int((await redis.info("commandstats"))["cmdstat_evalsha"]["calls"])

    before = await script_calls()
    await put(store, "0", b"")
    alone = await script_calls()
    await asyncio.gather(*(put(store, str(number), b"") for number in range(8)))

    assert alone - before == 2
    assert await script_calls() - alone == 2


async def test_a_redis_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    client = connect(server.url)
    store = RedisStore(client, "test")

    with pytest.raises(Unavailable, match="Redis"):
        await store.get("a")
    with pytest.raises(Unavailable, match="Redis"):
        await put(store, "a", b"")
    await disconnect(client)
