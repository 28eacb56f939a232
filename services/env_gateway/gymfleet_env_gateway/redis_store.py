"""The store in Redis: a client's call costs one round trip to take its entry and one to give it back.

An entry is a Redis hash with its value and its holder's intent. All entries taken and
given back in one turn of the event loop share one script call, whatever their number.
"""

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from gymfleet_kit.retries import Retries
from gymfleet_kit.streams.connection import RedisClient
from gymfleet_kit.streams.script_line import Script, ScriptLine
from redis.asyncio.lock import Lock
from redis.exceptions import LockNotOwnedError, RedisError

from gymfleet_env_gateway.errors import Unavailable
from gymfleet_env_gateway.store import Held, MemoryStore, NoEntry, Store, StoreFull

_PREFIX: Final = "gymfleet:gateway"
_LOCK_S: Final = 5.0
"""How long a gateway that dies with a lock blocks the others; while it lives, it extends the lock."""
_LOCK_WAIT_S: Final = 120.0
_FIRST_PAUSE_S: Final = 0.004
_LONGEST_PAUSE_S: Final = 0.1
_MAX_BATCH: Final = 256

_NOW: Final = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "
_ADD: Final = (
    _NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then return -1 end
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'value', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[3])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[2], ARGV[2]) end
return 1
"""
)
# Locks are taken and released here, not by redis-py's `Lock`, because that would take two more round trips a call, and
# because a holder that has lost its lock must not write.
# KEYS: the index. ARGV: the operations in msgpack, each as op, name of the entry, token, milliseconds and the size of
# its text, then all texts concatenated: the Redis client spends more time per argument than on everything else,
# and Redis cannot read binary strings in msgpack.
# The index lists the live keys by the time at which they expire, and lives as long as the last of them.
_APPLY: Final = Script(
    _NOW
    + """
local out, at = {}, 1
for i, asked in ipairs(cmsgpack.unpack(ARGV[1])) do
  local op, name, token, ms, size = unpack(asked)
  local text = string.sub(ARGV[2], at, at + size - 1)
  at = at + size
  local entry = KEYS[1] .. ':' .. name
  local lock = entry .. ':lock'
  local holder = redis.call('GET', lock)
  local mine = not holder or holder == token
  if op == 'take' then
    local found = redis.call('HMGET', entry, 'value', 'intent')
    if not found[1] then
      out[i] = {0}
    elseif not mine then
      out[i] = {1}
    else
      redis.call('SET', lock, token, 'PX', ms)
      if text ~= '' and not found[2] then redis.call('HSET', entry, 'intent', text) end
      out[i] = {2, found[1], found[2] or ''}
    end
  else
    if mine and redis.call('EXISTS', entry) == 1 then
      redis.call('HSET', entry, 'value', text)
      redis.call('HDEL', entry, 'intent')
      redis.call('PEXPIRE', entry, ms)
      redis.call('ZADD', KEYS[1], 'XX', now + ms, name)
      if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
    end
    if holder == token then redis.call('DEL', lock) end
    out[i] = {0}
  end
end
return out
"""
)
_KEYS: Final = _NOW + "return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf')"
_MISSING, _BUSY = 0, 1

T = TypeVar("T")
_encode: Final = msgspec.msgpack.Encoder().encode
_Asked = tuple[tuple[str, str, str, int, int], bytes, "asyncio.Future[list[Any]]"]


class _Busy(Exception):
    """Another call holds the entry."""


class RedisStore:
    """A store shared by all gateways, under the keys `gymfleet:gateway:NAMESPACE:KEY`."""

    def __init__(self, redis: RedisClient, namespace: str) -> None:
        self._redis: Any = redis
        self._namespace = namespace
        self._prefix = f"{_PREFIX}:{namespace}:"
        self._index = f"{_PREFIX}:{namespace}"
        self._add = redis.register_script(_ADD)
        self._line = ScriptLine(redis)
        self._keys = redis.register_script(_KEYS)
        self._name, self._numbers = secrets.token_hex(8), itertools.count()
        """Make the tokens of this store's holders, which differ from those of every other gateway."""
        self._outbox: list[_Asked] = []
        self._sending: asyncio.Task[None] | None = None

    async def add(self, key: str, value: bytes, *, ttl_s: float, limit: int) -> bool:
        """See `Store`."""
        args: list[bytes | int | str] = [value, _ms(ttl_s), key, limit]
        added = await _reached(self._add(keys=[self._prefix + key, self._index], args=args))
        if added < 0:
            raise StoreFull
        return bool(added)

    async def get(self, key: str) -> bytes | None:
        """See `Store`."""
        value: bytes | None = await _reached(self._redis.hget(self._prefix + key, "value"))
        return value

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
    async def hold(self, key: str, *, ttl_s: float, intent: bytes = b"") -> AsyncIterator[Held]:
        """See `Store`."""
        token = f"{self._name}-{next(self._numbers)}"
        held = await self._take(key, token, intent)
        keeper = _Keeper(self._redis, f"{self._prefix}{key}:lock", token)
        try:
            yield held
        finally:
            keeper.stop()
            await self._ask("give", key, token, _ms(ttl_s), held.value)

    async def _take(self, key: str, token: str, intent: bytes) -> Held:
        retries = Retries(
            "entry.busy", on=_Busy, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S, level="info",
            bound={"namespace": self._namespace},
        )  # fmt: skip
        try:
            return await retries.call(partial(self._try_to_take, key, token, intent), timeout_s=_LOCK_WAIT_S)
        except _Busy as busy:
            raise Unavailable(str(busy)) from None

    async def _try_to_take(self, key: str, token: str, intent: bytes) -> Held:
        found = await self._ask("take", key, token, _ms(_LOCK_S), intent)
        if found[0] == _MISSING:
            raise NoEntry(key)
        if found[0] == _BUSY:
            raise _Busy("an earlier call for the same id is still running")
        return Held(found[1], found[2])

    async def _ask(self, op: str, key: str, token: str, ms: int, text: bytes) -> list[Any]:
        done: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._outbox.append(((op, key, token, ms, len(text)), text, done))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await done

    async def _send(self) -> None:
        """Send all collected operations in one script call; those that arrive meanwhile go with the next call."""
        try:
            while self._outbox:
                batch, self._outbox = self._outbox[:_MAX_BATCH], self._outbox[_MAX_BATCH:]
                try:
                    args = [_encode([asked for asked, _, _ in batch]), b"".join(text for _, text, _ in batch)]
                    answers = await self._line.call(_APPLY, [self._index], args)
                except RedisError as error:
                    for _, _, done in batch:
                        if not done.done():
                            done.set_exception(_unavailable(error))
                else:
                    for (_, _, done), answer in zip(batch, answers, strict=True):
                        if not done.done():
                            done.set_result(answer)
        finally:
            self._sending = None


class _Keeper:
    """Extends a lock while its holder works. It starts as a timer: most holders finish before the timer is due."""

    def __init__(self, redis: RedisClient, name: str, token: str) -> None:
        self._redis = redis
        self._name = name
        self._token = token
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_LOCK_S / 3, self._begin)

    def stop(self) -> None:
        """Stop extending: the holder is done."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        lock = Lock(self._redis, self._name, timeout=_LOCK_S, thread_local=False)
        lock.local.token = self._token.encode()  # taken by the script
        while True:
            try:
                await lock.reacquire()
            except LockNotOwnedError:
                return
            except RedisError:
                pass  # the next extension may come in time
            await asyncio.sleep(_LOCK_S / 3)


def make_store(redis: RedisClient | None, namespace: str) -> Store:
    """Return a shared store where there is a Redis, else one in this process's memory."""
    return MemoryStore() if redis is None else RedisStore(redis, namespace)


async def _reached(command: Awaitable[T]) -> T:
    try:
        return await command
    except RedisError as error:
        raise _unavailable(error) from None


def _unavailable(error: RedisError) -> Unavailable:
    return Unavailable(f"the gateways' Redis failed: {type(error).__name__}")


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)
