"""Count the gateways that share a Redis, so that each grants its share of a tenant's rates."""

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Final

import structlog
from gymfleet_kit.streams import RedisClient
from redis.exceptions import RedisError

log = structlog.get_logger()

KEY: Final = "gymfleet:gateway:census"
_EVERY_S: Final = 2.0
_GONE_AFTER_MS: Final = 7000
_TIMEOUT_S: Final = 2.0
_SIGN_OFF_S: Final = 1.0

_COUNT: Final = """
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
"""


async def keep_counting(redis: RedisClient, tell: Callable[[int], None]) -> None:
    """Report this gateway as alive and `tell` how many are, until cancelled. Without Redis, the last count holds."""
    name = secrets.token_hex(8)
    count = redis.register_script(_COUNT)
    known = 0
    try:
        while True:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    number = int(await count(keys=[KEY], args=[name, _GONE_AFTER_MS]))
            except (RedisError, TimeoutError):
                pass  # the journal, which uses the same Redis, logs the outage
            else:
                if number != known:
                    log.info("gateways.counted", number=number)
                    known = number
                tell(number)
            await asyncio.sleep(_EVERY_S)
    finally:
        # A gateway that shuts down cleanly is no longer counted from that moment on.
        await _sign_off(redis, name)


async def _sign_off(redis: RedisClient, name: str) -> None:
    """Try to sign off, leaving nothing running: a command after the client is closed would open a connection again."""
    with contextlib.suppress(RedisError, TimeoutError):
        async with asyncio.timeout(_SIGN_OFF_S):
            await redis.zrem(KEY, name)
