"""The consumer group's commands: claim, read, extend, release, acknowledge, bury."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import structlog
from gymfleet_contracts.streams import dead_letters
from redis.exceptions import ResponseError

from gymfleet_kit.streams.connection import RedisClient
from gymfleet_kit.streams.metrics import BURIED

log = structlog.get_logger()
Fields: TypeAlias = dict[bytes, bytes]
Entry: TypeAlias = tuple[str, Fields]

MAX_DEAD_LETTERS: Final = 10_000
MAX_REASON_CHARS: Final = 2_000

# With one group, an acknowledged entry is deleted wherever it is; with several,
# only the head of the stream that no group still needs is deleted.
_ACK: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 2))
local groups = redis.call('XINFO', 'GROUPS', KEYS[1])
if #groups <= 1 then
    redis.call('XDEL', KEYS[1], unpack(ARGV, 2))
else
    local oldest = nil
    local function older(a, b)
        local a_ms, a_n = string.match(a, '(%d+)-(%d+)')
        local b_ms, b_n = string.match(b, '(%d+)-(%d+)')
        if a_ms ~= b_ms then return tonumber(a_ms) < tonumber(b_ms) end
        return tonumber(a_n) < tonumber(b_n)
    end
    for _, info in ipairs(groups) do
        local group = {}
        for i = 1, #info, 2 do group[info[i]] = info[i + 1] end
        local needed = redis.call('XPENDING', KEYS[1], group['name'])[2]
        if not needed then
            local ms, n = string.match(group['last-delivered-id'], '(%d+)-(%d+)')
            needed = ms .. '-' .. string.format('%d', tonumber(n) + 1)
        end
        if oldest == nil or older(needed, oldest) then oldest = needed end
    end
    redis.call('XTRIM', KEYS[1], 'MINID', oldest)
end
"""
# Lua's stack limits how many values `unpack` can return.
_ACK_CHUNK: Final = 1_000


class ConsumerGroup:
    """One consumer's view of one group. Redis errors are raised as they are."""

    def __init__(self, redis: RedisClient, stream: str, group: str, consumer: str, lease_ms: int) -> None:
        # The published stubs have only half of the stream commands.
        self._redis: Any = redis
        self._stream = stream
        self._group = group
        self._consumer = consumer
        self._lease_ms = lease_ms
        self._ack = redis.register_script(_ACK)
        self._cursor = b"0-0"

    async def create(self) -> None:
        """Create stream and group, reading from the beginning; nothing happens if they exist."""
        try:
            await self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def claim_abandoned(self, count: int) -> tuple[list[tuple[Entry, int]], bool]:
        """Take over entries whose lease ran out, with their delivery counts.

        Looks at about ten times `count` pending entries and continues from there at
        the next call; the flag is True if it reached the last pending entry.
        """
        reply = await self._redis.xautoclaim(
            self._stream,
            self._group,
            self._consumer,
            min_idle_time=self._lease_ms,
            start_id=self._cursor,
            count=count,
        )
        self._cursor = reply[0]
        entries = [_entry(item) for item in reply[1] if _exists(item)]
        # Redis 6.2 returns nil for a deleted entry and keeps it pending for
        # ever; Redis 7 drops it from the pending entries by itself.
        if len(entries) < len(reply[1]):
            await self._forget_deleted()
        attempts = await self._attempts([entry_id for entry_id, _ in entries])
        return list(zip(entries, attempts, strict=True)), self._cursor == b"0-0"

    async def read_fresh(self, count: int, block_ms: int) -> list[Entry]:
        """Return entries that no consumer has received yet; wait up to `block_ms`, not at all if it is 0."""
        reply = await self._redis.xreadgroup(
            self._group, self._consumer, {self._stream: ">"}, count=count, block=block_ms or None
        )
        return [_entry(item) for _, items in reply or [] for item in items]

    async def extend(self, ids: Sequence[str]) -> None:
        """Extend the leases. With JUSTID this does not count as a delivery."""
        await self._redis.xclaim(self._stream, self._group, self._consumer, 0, list(ids), justid=True)

    async def release(self, attempts: Mapping[str, int]) -> None:
        """End the leases now and uncount the delivery, so that any consumer can get the entries next."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for entry_id, attempt in attempts.items():
                pipe.xclaim(
                    self._stream, self._group, self._consumer, 0, [entry_id],
                    idle=self._lease_ms, retrycount=attempt - 1, justid=True,
                )  # fmt: skip
            await pipe.execute()

    async def ack(self, ids: Sequence[str]) -> None:
        """Acknowledge and trim in one script."""
        for start in range(0, len(ids), _ACK_CHUNK):
            chunk = ids[start : start + _ACK_CHUNK]
            await self._ack(keys=[self._stream], args=[self._group, *chunk])

    async def bury(self, entry: Entry, *, reason: str, attempts: int) -> None:
        """Move an entry to the dead letters atomically."""
        entry_id, fields = entry
        letter = {
            **fields,
            b"reason": reason[:MAX_REASON_CHARS].encode(errors="replace"),
            b"attempts": str(attempts).encode(),
            b"id": entry_id.encode(),
            b"group": self._group.encode(),
        }
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xadd(dead_letters(self._stream), letter, maxlen=MAX_DEAD_LETTERS)
            await self._ack(keys=[self._stream], args=[self._group, entry_id], client=pipe)
            await pipe.execute()
        BURIED.labels(self._stream, self._group).inc()
        log.error(
            "message.buried",
            stream=self._stream,
            group=self._group,
            id=entry_id,
            attempts=attempts,
            reason=reason[:200],
        )

    async def _attempts(self, ids: Sequence[str]) -> list[int]:
        if not ids:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for entry_id in ids:
                pipe.xpending_range(self._stream, self._group, min=entry_id, max=entry_id, count=1)
            rows = await pipe.execute()
        return [int(row[0]["times_delivered"]) if row else 1 for row in rows]

    async def _forget_deleted(self) -> None:
        rows = await self._redis.xpending_range(
            self._stream, self._group, min="-", max="+", count=1_000, consumername=self._consumer
        )
        ids = [row["message_id"] for row in rows]
        found = await asyncio.gather(*(self._redis.xrange(self._stream, id_, id_) for id_ in ids))
        if gone := [id_.decode() for id_, hit in zip(ids, found, strict=True) if not hit]:
            log.error("message.vanished", stream=self._stream, group=self._group, ids=gone)
            await self._redis.xack(self._stream, self._group, *gone)


def _exists(item: tuple[bytes | None, Fields | None] | None) -> bool:
    return item is not None and item[0] is not None and item[1] is not None


def _entry(item: tuple[bytes, Fields]) -> Entry:
    return item[0].decode(), item[1]
