"""The loop of a worker: receive, extend leases, handle and acknowledge."""

import asyncio
from typing import TYPE_CHECKING, Final, Generic

import structlog
from redis.exceptions import RedisError

from gymfleet_kit.retries import Retries
from gymfleet_kit.streams.delivery import Delivery, Handler, M
from gymfleet_kit.streams.metrics import FAILED, HANDLED
from gymfleet_kit.trace import traced

if TYPE_CHECKING:
    from gymfleet_kit.streams.consumer import StreamConsumer

log = structlog.get_logger()

BLOCK_MS: Final = 1_000
"""Length of one wait for messages; `stop` is noticed after it at the latest."""
ERROR_PAUSE_S: Final = 1.0
RELEASE_TIMEOUT_S: Final = 2.0


class Runner(Generic[M]):
    """One call of `StreamConsumer.run`."""

    def __init__(
        self, consumer: "StreamConsumer[M]", handle: Handler[M], *, concurrency: int, stop: asyncio.Event
    ) -> None:
        self._consumer = consumer
        self._handle = handle
        self._concurrency = concurrency
        self._stop = stop
        self._in_hand: dict[str, tuple[Delivery[M], asyncio.Task[None]]] = {}
        self._log = log.bind(**consumer.labels)

    async def run(self) -> None:
        """Run until `stop` is set and the running handlers have ended."""
        stopped = asyncio.create_task(self._stop.wait())
        extending = asyncio.create_task(self._extend())
        try:
            while not self._stop.is_set():
                await self._fill()
                if len(self._in_hand) >= self._concurrency:
                    tasks = [task for _, task in self._in_hand.values()]
                    await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if self._in_hand:
                await asyncio.wait([task for _, task in self._in_hand.values()])
        finally:
            stopped.cancel()
            extending.cancel()
            await self._break_off()
            await asyncio.gather(stopped, extending, return_exceptions=True)

    async def _fill(self) -> None:
        # `receive` waits through an outage, so the cause is credentials, memory or a key of the wrong type: a person
        # must act.
        retries = Retries(
            "stream.failed", on=RedisError, first_pause_s=ERROR_PAUSE_S, longest_pause_s=ERROR_PAUSE_S, level="error",
            bound=self._consumer.labels,
        )  # fmt: skip
        received = await retries.call(self._receive)
        # After a late extension a worker can receive a message that it is still working on.
        fresh = [delivery for delivery in received if delivery.id not in self._in_hand]
        if self._stop.is_set():
            await self._give_back(fresh)
            return
        for delivery in fresh:
            self._in_hand[delivery.id] = delivery, asyncio.create_task(self._process(delivery))

    async def _receive(self) -> list[Delivery[M]]:
        if self._stop.is_set():
            return []
        return await self._consumer.receive(self._concurrency - len(self._in_hand), BLOCK_MS)

    async def _process(self, delivery: Delivery[M]) -> None:
        with traced(delivery.trace):
            try:
                await self._attempt(delivery)
            except RedisError:  # the message stays pending; the handler is idempotent
                self._log.exception("message.unsettled", id=delivery.id, attempt=delivery.attempt)
            finally:
                del self._in_hand[delivery.id]

    async def _attempt(self, delivery: Delivery[M]) -> None:
        labels = self._consumer.labels
        try:
            await self._handle(delivery)
        except Exception as error:  # noqa: BLE001 - whatever the handler raises: the message stays
            FAILED.labels(**labels).inc()
            self._log.error("message.failed", id=delivery.id, attempt=delivery.attempt, exc_info=error)
            if delivery.attempt >= self._consumer.max_attempts:
                reason = f"gave up after {delivery.attempt} attempts: {type(error).__name__}: {error}"
                await self._consumer.bury(delivery, reason)
            return
        await self._consumer.ack([delivery.id])
        HANDLED.labels(**labels).inc()

    async def _extend(self) -> None:
        while True:
            await asyncio.sleep(self._consumer.lease_s / 3)
            try:
                await self._consumer.extend(list(self._in_hand))
            except RedisError:
                self._log.exception("lease.not_extended", ids=list(self._in_hand))

    async def _break_off(self) -> None:
        """End the running handlers after a cancellation, and give their messages back."""
        if not self._in_hand:
            return
        unfinished = list(self._in_hand.values())
        for _, task in unfinished:
            task.cancel()
        await asyncio.gather(*(task for _, task in unfinished), return_exceptions=True)
        await self._give_back([delivery for delivery, _ in unfinished])

    async def _give_back(self, deliveries: list[Delivery[M]]) -> None:
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                await self._consumer.release(deliveries)
        except (RedisError, TimeoutError):
            # Their leases end by themselves.
            self._log.warning("message.unreleased", ids=[delivery.id for delivery in deliveries])
