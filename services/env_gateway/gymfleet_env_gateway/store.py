"""What a client's calls leave behind for the next ones, whichever gateway those reach.

Every entry has a time to live, so that nobody has to sweep. With Redis the gateways
share the entries; without, one gateway keeps them in its memory.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from gymfleet_kit.streams.connection import RedisClient
from redis.exceptions import RedisError

from gymfleet_env_gateway.errors import Unavailable

_PREFIX: Final = "gymfleet:gateway"
_LOCK_S: Final = 5.0
"""A gateway that dies with a lock holds up the others for so long; while it lives, it renews the lock."""
_LOCK_WAIT_S: Final = 120.0
_FIRST_PAUSE_S: Final = 0.004
_LONGEST_PAUSE_S: Final = 0.1

_NOW: Final = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "
# The index lists the living keys by the time of their end, and lives as long as the last of them.
_INDEX: Final = (
    "redis.call('ZADD', KEYS[2], %s now + ARGV[2], ARGV[3]) "
    "if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end return 1"
)
_ADD: Final = (
    _NOW + "redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now) "
    "if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then return -1 end "
    "if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 0 end " + _INDEX % ""
)
_SET: Final = (
    _NOW + "if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'XX') then return 0 end " + _INDEX % "'XX',"
)
_KEYS: Final = _NOW + "return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')"
_RENEW: Final = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0"
_RELEASE: Final = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"

T = TypeVar("T")


class StoreFull(Exception):
    """As many entries live as may."""


class Store(Protocol):
    """Values by key. All but `MemoryStore` raise `Unavailable` when the store cannot be reached."""

    async def add(self, key: str, value: bytes, *, ttl_s: float, limit: int) -> bool:
        """A new entry; False when the key is taken. Raises `StoreFull` when `limit` entries live."""

    async def get(self, key: str) -> bytes | None:
        """The value; reading does not prolong its life."""

    async def set(self, key: str, value: bytes, *, ttl_s: float) -> bool:
        """Replace the value of an entry that lives; False, and nothing is stored, when it does not."""

    async def delete(self, key: str) -> bool:
        """False when there was nothing."""

    async def keys(self) -> list[str]:
        """Of all entries that live."""

    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """One holder at a time, over all gateways. Raises `Unavailable` after a long wait."""


@dataclass(slots=True)
class _Gate:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class MemoryStore:
    """For one gateway alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, tuple[bytes, float]] = {}
        self._gates: dict[str, _Gate] = {}

    async def add(self, key: str, value: bytes, *, ttl_s: float, limit: int) -> bool:
        """See `Store`."""
        living = await self.keys()
        if len(living) >= limit:
            raise StoreFull
        if key in self._entries:
            return False
        self._entries[key] = (value, self._clock() + ttl_s)
        return True

    async def get(self, key: str) -> bytes | None:
        """See `Store`."""
        value, expires = self._entries.get(key, (None, 0.0))
        return value if expires > self._clock() else None

    async def set(self, key: str, value: bytes, *, ttl_s: float) -> bool:
        """See `Store`."""
        if await self.get(key) is None:
            return False
        self._entries[key] = (value, self._clock() + ttl_s)
        return True

    async def delete(self, key: str) -> bool:
        """See `Store`."""
        lived = await self.get(key) is not None
        self._entries.pop(key, None)
        return lived

    async def keys(self) -> list[str]:
        """See `Store`."""
        now = self._clock()
        for key in [key for key, (_, expires) in self._entries.items() if expires <= now]:
            del self._entries[key]
        return list(self._entries)

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """See `Store`."""
        gate = self._gates.setdefault(key, _Gate())
        gate.users += 1
        try:
            async with gate.lock:
                yield
        finally:
            gate.users -= 1
            if not gate.users:
                del self._gates[key]


class RedisStore:
    """Shared by all gateways: keys `gymfleet:gateway:NAMESPACE:KEY`."""

    def __init__(self, redis: RedisClient, namespace: str) -> None:
        self._redis: Any = redis
        self._prefix = f"{_PREFIX}:{namespace}:"
        self._index = f"{_PREFIX}:{namespace}"
        self._add = redis.register_script(_ADD)
        self._set = redis.register_script(_SET)
        self._keys = redis.register_script(_KEYS)
        self._renew = redis.register_script(_RENEW)
        self._release = redis.register_script(_RELEASE)

    async def add(self, key: str, value: bytes, *, ttl_s: float, limit: int) -> bool:
        """See `Store`."""
        args: list[bytes | int | str] = [value, _ms(ttl_s), key, limit]
        added = await _reached(self._add(keys=[self._prefix + key, self._index], args=args))
        if added < 0:
            raise StoreFull
        return bool(added)

    async def get(self, key: str) -> bytes | None:
        """See `Store`."""
        value: bytes | None = await _reached(self._redis.get(self._prefix + key))
        return value

    async def set(self, key: str, value: bytes, *, ttl_s: float) -> bool:
        """See `Store`."""
        args: list[bytes | int | str] = [value, _ms(ttl_s), key]
        return bool(await _reached(self._set(keys=[self._prefix + key, self._index], args=args)))

    async def delete(self, key: str) -> bool:
        """See `Store`."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.delete(self._prefix + key)
        pipeline.zrem(self._index, key)
        deleted, _ = await _reached(pipeline.execute())
        return bool(deleted)

    async def keys(self) -> list[str]:
        """See `Store`."""
        return [key.decode() for key in await _reached(self._keys(keys=[self._index]))]

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """See `Store`."""
        name, token = f"{self._prefix}{key}:lock", secrets.token_hex(8)
        await self._acquire(name, token)
        keeper = asyncio.create_task(self._keep(name, token))
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(RedisError):  # then it runs out
                await self._release(keys=[name], args=[token])

    async def _acquire(self, name: str, token: str) -> None:
        deadline, pause_s = time.monotonic() + _LOCK_WAIT_S, _FIRST_PAUSE_S
        while not await _reached(self._redis.set(name, token, nx=True, px=_ms(_LOCK_S))):
            if time.monotonic() >= deadline:
                raise Unavailable("an earlier call for the same id is still running")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _keep(self, name: str, token: str) -> None:
        held = True
        while held:
            await asyncio.sleep(_LOCK_S / 3)
            with contextlib.suppress(RedisError):
                held = bool(await self._renew(keys=[name], args=[token, _ms(_LOCK_S)]))


def make_store(redis: RedisClient | None, namespace: str) -> Store:
    """Shared where there is a Redis, else this process's own."""
    return MemoryStore() if redis is None else RedisStore(redis, namespace)


async def _reached(command: Awaitable[T]) -> T:
    try:
        return await command
    except RedisError as error:
        raise Unavailable(f"the gateways' Redis failed: {type(error).__name__}") from None


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
