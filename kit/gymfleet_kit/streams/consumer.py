"""The reading end of a stream: leases, attempts and dead letters."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import structlog
from gymfleet_contracts.faults import faults
from gymfleet_contracts.streams import BODY_FIELD, TRACE_FIELD
from pydantic import ValidationError
from redis.exceptions import ResponseError

from gymfleet_kit.streams.connection import MAX_BLOCK_S, OUTAGE, Patience, RedisClient, is_outage
from gymfleet_kit.streams.consumer_group import ConsumerGroup, Entry
from gymfleet_kit.streams.delivery import Delivery, Handler, M
from gymfleet_kit.streams.runner import Runner

log = structlog.get_logger()
T = TypeVar("T")


class StreamConsumer(Generic[M]):
    """Take messages from one stream as a member of a group.

    Every method waits through a loss of the connection: `receive` treats it like
    an empty stream, the others wait for up to `lease_s` and then raise the
    connection error. A group that a restart has lost is created again.

    Args:
        schema: the type of the bodies; a body that it refuses goes to the dead letters.
        consumer: a name that is unique among the living consumers of the group.
        lease_s: a message that its consumer has neither extended nor acknowledged
            for this long is given to another consumer.
        max_attempts: deliveries before a message goes to the dead letters.
        on_unreadable: called with the body of a message that the schema refused, once it is in the dead letters.
    """

    def __init__(
        self,
        redis: RedisClient,
        stream: str,
        group: str,
        schema: type[M],
        *,
        consumer: str,
        lease_s: float = 30.0,
        max_attempts: int = 5,
        on_unreadable: Callable[[bytes], None] | None = None,
    ) -> None:
        self.labels = {"stream": stream, "group": group}
        """The labels of its log lines and metrics."""
        self.lease_s = lease_s
        self.max_attempts = max_attempts
        self._schema = schema
        self._on_unreadable = on_unreadable
        self._commands = ConsumerGroup(redis, stream, group, consumer, int(lease_s * 1000))
        self._patience = Patience(**self.labels)

    async def create_group(self) -> None:
        """Create the stream and the group if they are missing; the group reads from the beginning of the stream."""
        await self._patience.call(self._commands.create, timeout_s=self.lease_s)

    async def receive(self, count: int, block_ms: int) -> list[Delivery[M]]:
        """Return up to `count` messages, abandoned ones first; wait up to `block_ms` for the first one.

        Messages that cannot be read or were delivered too often are moved to the
        dead letters. The caller extends the others' leases in time, and acknowledges them.
        """
        deadline = time.monotonic() + block_ms / 1000
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            try:
                deliveries = await self._call(partial(self._receive_once, count, left_s), timeout_s=left_s)
            except OUTAGE as error:
                if not is_outage(error):
                    raise
                deliveries = []
            if deliveries or time.monotonic() >= deadline:
                return deliveries

    async def extend(self, ids: Sequence[str]) -> None:
        """Extend the leases of these messages."""
        if ids:
            await self._call(lambda: self._commands.extend(ids))

    async def release(self, deliveries: Sequence[Delivery[M]]) -> None:
        """Give messages back unhandled, without counting the attempt; the next `receive` of any consumer gets them."""
        if deliveries:
            attempts = {delivery.id: delivery.attempt for delivery in deliveries}
            await self._call(lambda: self._commands.release(attempts))

    async def ack(self, ids: Sequence[str]) -> None:
        """Acknowledge messages, which then leave the stream."""
        if ids:
            await self._call(lambda: self._commands.ack(ids))

    async def bury(self, delivery: Delivery[M], reason: str) -> None:
        """Move a message to the dead letters now, because no further attempt can help."""
        fields = {BODY_FIELD.encode(): delivery.body.model_dump_json().encode()}
        if delivery.trace is not None:
            fields[TRACE_FIELD.encode()] = delivery.trace.encode()
        await self._call(lambda: self._commands.bury((delivery.id, fields), reason=reason, attempts=delivery.attempt))

    async def run(self, handle: Handler[M], *, concurrency: int, stop: asyncio.Event) -> None:
        """Handle messages, `concurrency` at once, until `stop` is set.

        A message is acknowledged after `handle` has returned, and stays for a later
        attempt if it raised. After `stop` the running handlers are awaited; to
        interrupt them, cancel this call, which gives their messages back.
        """
        await Runner(self, handle, concurrency=concurrency, stop=stop).run()

    async def _receive_once(self, count: int, wait_s: float) -> list[Delivery[M]]:
        received, all_seen = await self._commands.claim_abandoned(count)
        if not received:
            # Messages may be abandoned while this waits, so look for them from time to time.
            block_s = min(wait_s, MAX_BLOCK_S, self.lease_s) if all_seen else 0.0
            received = [(entry, 1) for entry in await self._commands.read_fresh(count, int(block_s * 1000))]
        deliveries = [await self._read(entry, attempt) for entry, attempt in received]
        return [delivery for delivery in deliveries if delivery is not None]

    async def _read(self, entry: Entry, attempt: int) -> Delivery[M] | None:
        entry_id, fields = entry
        if attempt > self.max_attempts:
            reason = f"gave up after {self.max_attempts} attempts"
            await self._commands.bury(entry, reason=reason, attempts=attempt - 1)
            return None
        try:
            body = self._schema.model_validate_json(fields[BODY_FIELD.encode()])
        except (KeyError, ValidationError) as error:  # no retry can repair it
            reason = f"no field {error}" if isinstance(error, KeyError) else faults(error, most=5)
            await self._commands.bury(entry, reason=f"unreadable: {reason}", attempts=attempt)
            if self._on_unreadable is not None:
                self._on_unreadable(fields.get(BODY_FIELD.encode(), b""))
            return None
        trace = fields.get(TRACE_FIELD.encode())
        return Delivery(entry_id, attempt, body, None if trace is None else trace.decode(errors="replace"))

    async def _call(self, operation: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        timeout_s = self.lease_s if timeout_s is None else timeout_s
        try:
            return await self._patience.call(operation, timeout_s=timeout_s)
        except ResponseError as error:
            # Either this is the first consumer of the stream, or Redis came back without its data.
            if not str(error).startswith("NOGROUP"):
                raise
            await self.create_group()
            log.info("group.created", **self.labels)
            return await self._patience.call(operation, timeout_s=timeout_s)
