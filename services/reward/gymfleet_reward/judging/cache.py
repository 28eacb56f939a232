"""Verdicts by the hash of the question: in this process, and in Redis for its next start and for other replicas."""

import asyncio
from collections import OrderedDict
from typing import Final

import msgspec
import structlog
from gymfleet_contracts.streams import verdict_key
from gymfleet_kit.judging.verdict import Values
from gymfleet_kit.streams import connect, disconnect
from redis.exceptions import RedisError

log = structlog.get_logger()

_MAX_KEPT: Final = 16_384
_KEPT_S: Final = 24 * 3600
"""How long verdicts stay in Redis, which evicts nothing by itself."""
_PATIENCE_S: Final = 2.0
"""Time for Redis to answer: the judge is asked again for a verdict that does not come in time."""

_decode: Final = msgspec.json.Decoder(Values).decode
_encode: Final = msgspec.json.Encoder().encode


class Recent:
    """The most recently used verdicts."""

    def __init__(self, max_kept: int = _MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: OrderedDict[str, Values] = OrderedDict()

    def get(self, key: str) -> Values | None:
        """Return a verdict, if it is known."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: str, values: Values) -> None:
        """Keep a verdict; the least recently used one makes room."""
        self._kept[key] = values
        self._kept.move_to_end(key)
        if len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)


class Shared:
    """The verdicts in Redis, for one event loop. Without Redis nothing is known, and nothing fails."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect(redis_url)
        self._away = False

    async def get(self, key: str) -> Values | None:
        """Return a verdict, if it is known."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                found = await self._redis.get(verdict_key(key))
        except (RedisError, TimeoutError) as error:
            self._missed(error)
            return None
        self._away = False
        try:
            return None if found is None else _decode(found)
        except msgspec.DecodeError:
            return None

    async def put(self, key: str, values: Values) -> None:
        """Keep a verdict for a day."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._redis.set(verdict_key(key), _encode(values), ex=_KEPT_S)
        except (RedisError, TimeoutError) as error:
            self._missed(error)

    async def aclose(self) -> None:
        """Close the connections."""
        await disconnect(self._redis)

    def _missed(self, error: Exception) -> None:
        if not self._away:
            log.warning("verdicts.unshared", reason=type(error).__name__)
        self._away = True
