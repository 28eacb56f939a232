"""The writing end of a stream, bounded by the consumers' backlog."""

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from gymfleet_contracts import problems
from gymfleet_contracts.streams import BODY_FIELD, TRACE_FIELD
from pydantic import BaseModel
from redis.exceptions import ResponseError

from gymfleet_kit.problems import TryLater
from gymfleet_kit.retries import Retries
from gymfleet_kit.streams.connection import Patience, RedisClient
from gymfleet_kit.trace import current_trace

Answer: TypeAlias = tuple[bytes | int | None, int]
"""The result of the addition (None if there was no room), and the backlog afterwards."""
Add: TypeAlias = Callable[[], Awaitable[Answer]]

_PUBLISH: Final = """
local backlog = redis.call('XLEN', KEYS[1])
if backlog >= tonumber(ARGV[1]) then return {false, backlog} end
return {redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2)), backlog + 1}
"""
_PUBLISH_ONCE: Final = """
local backlog = redis.call('XLEN', KEYS[1])
local last = tonumber(ARGV[2]) + 2
for i = 3, last do
    if redis.call('SISMEMBER', KEYS[2], ARGV[i]) == 1 then return {0, backlog} end
end
if backlog >= tonumber(ARGV[1]) then return {false, backlog} end
redis.call('SADD', KEYS[2], unpack(ARGV, 3, last))
local width = tonumber(ARGV[last + 1])
for i = last + 2, #ARGV, width do redis.call('XADD', KEYS[1], '*', unpack(ARGV, i, i + width - 1)) end
return {1, backlog + (#ARGV - last - 1) / width}
"""
_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


class StreamFull(TryLater):
    """The consumers are `max_len` messages behind, and did not catch up in time. Nothing was added."""

    type = problems.QUEUE_FULL
    title = "The queue is full"


class _NoRoom(Exception):
    """The stream is full now; the message gives its backlog and the limit."""


class StreamProducer:
    """Add messages to one stream.

    Acknowledged entries leave the stream, so its length is the backlog. The
    check and the addition are one script, so `max_len` holds for any number of
    producers. A publication also waits while Redis is unreachable or full.

    Args:
        max_len: the backlog at which producers start to wait.
        full_timeout_s: how long they wait before they raise `StreamFull`, or the
            connection error if Redis was unreachable.
    """

    def __init__(self, redis: RedisClient, stream: str, *, max_len: int = 10_000, full_timeout_s: float = 60.0) -> None:
        self.stream = stream
        self._max_len = max_len
        self._full_timeout_s = full_timeout_s
        self._publish = redis.register_script(_PUBLISH)
        self._publish_once = redis.register_script(_PUBLISH_ONCE)
        self._patience = Patience(stream=stream)

    async def publish(self, body: BaseModel) -> str:
        """Add a message and return its entry id. Raises `StreamFull` after the timeout.

        If the connection is lost between the addition and its answer, there will be
        a second entry, which is harmless because consumers are idempotent.
        """
        fields = _fields(body)

        async def add() -> Answer:
            answer: Answer = await self._publish(keys=[self.stream], args=[self._max_len, *fields])
            return answer

        entry_id = await self._when_room(add)
        assert isinstance(entry_id, bytes)  # noqa: S101 - XADD answers an id
        return entry_id.decode()

    async def publish_once(self, bodies: Sequence[BaseModel], *, key: str, members: Sequence[str]) -> bool:
        """Add messages, and `members` to the set `key`, atomically, unless the set has one of them already.

        Returns False, having added nothing, if the set had one. Raises `StreamFull` after the timeout. Several
        messages may together exceed `max_len`.
        """
        rows = [_fields(body) for body in bodies]
        arguments: list[str | int] = [self._max_len, len(members), *members, len(rows[0])]
        arguments += itertools.chain.from_iterable(rows)

        async def add() -> Answer:
            answer: Answer = await self._publish_once(keys=[self.stream, key], args=arguments)
            return answer

        return await self._when_room(add) == 1

    async def _when_room(self, add: Add) -> bytes | int:
        deadline = time.monotonic() + self._full_timeout_s

        async def once() -> bytes | int:
            added, backlog = await self._attempt(add, max(deadline - time.monotonic(), 0.0))
            if added is None:
                raise _NoRoom(f"{backlog} messages that nobody has handled, its limit is {self._max_len}")
            return added

        retries = Retries(
            "stream.full", on=_NoRoom, first_pause_s=_FIRST_PAUSE_S, longest_pause_s=_LONGEST_PAUSE_S,
            bound={"stream": self.stream},
        )  # fmt: skip
        try:
            return await retries.call(once, timeout_s=self._full_timeout_s)
        except _NoRoom as full:
            raise StreamFull(
                f"{self.stream} holds {full}; waited {self._full_timeout_s:g} s",
                stream=self.stream,
                max_len=self._max_len,
            ) from None

    async def _attempt(self, add: Add, timeout_s: float) -> Answer:
        try:
            return await self._patience.call(add, timeout_s=timeout_s)
        except ResponseError as error:
            # With `noeviction`, Redis at its memory limit refuses to grow until consumers have drained it.
            if "OOM" not in str(error):
                raise
            return None, self._max_len


def _fields(body: BaseModel) -> list[str]:
    fields = [BODY_FIELD, body.model_dump_json()]
    trace = current_trace()
    return fields if trace is None else [*fields, TRACE_FIELD, trace]
