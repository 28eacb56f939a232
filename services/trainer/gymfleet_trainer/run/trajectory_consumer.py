"""Receive scored trajectories and hold them until the checkpoint that contains them is on disk."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import structlog
from gymfleet_contracts.streams import TRAINER_GROUP, trajectories_scored
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.streams import OUTAGE, Delivery, RedisClient, StreamConsumer

log = structlog.get_logger()

CONSUMER: Final = "trainer"


@dataclass(frozen=True, slots=True)
class LostSample:
    """A sample whose record could not be read, with its known identity."""

    group_id: str
    sample: int
    replay: int


class TrajectoryConsumer:
    """Consume `trajectories.scored:RUN` for the trainer.

    Deliveries stay pending until `acknowledge`; their leases are extended in the
    background, even while torch works in another thread. After a restart they are
    taken back as soon as the context is entered: the run directory's lock proves
    that the process that held them is gone.
    """

    def __init__(self, redis: RedisClient, run_id: str, *, lease_s: float) -> None:
        self._redis = redis
        self._stream = trajectories_scored(run_id)
        self._lease_s = lease_s
        self._consumer = self._make_consumer(lease_s)
        self._held: dict[str, Delivery[ScoredTrajectory]] = {}
        self._lost: list[LostSample] = []
        self._recovered: list[ScoredTrajectory] = []
        self._extending: asyncio.Task[None] | None = None

    def _make_consumer(self, lease_s: float) -> StreamConsumer[ScoredTrajectory]:
        return StreamConsumer(
            self._redis, self._stream, TRAINER_GROUP, ScoredTrajectory, consumer=CONSUMER, lease_s=lease_s,
            # Every restart of the trainer counts as a delivery, and frequent restarts are not the message's fault.
            max_attempts=1_000_000,
            on_unreadable=self._note_lost,
        )  # fmt: skip

    async def __aenter__(self) -> Self:
        await self._consumer.create_group()
        await self._recover()
        self._extending = asyncio.create_task(self._extend_for_ever())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop extending leases, because held deliveries are abandoned or the stream is about to be deleted."""
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.wait([self._extending])

    @property
    def num_held(self) -> int:
        """Return the number of pending deliveries."""
        return len(self._held)

    @property
    def groups(self) -> frozenset[str]:
        """Return the ids of the groups that pending deliveries belong to."""
        return frozenset(held.body.trajectory.group_id for held in self._held.values())

    async def receive(self, timeout_s: float) -> list[ScoredTrajectory]:
        """Return arrived trajectories; none after `timeout_s` or in an outage of Redis. Duplicates are possible."""
        if self._recovered:
            recovered, self._recovered = self._recovered, []
            return recovered
        try:
            return await self._take(self._consumer, 64, timeout_s)
        except OUTAGE as error:
            log.warning("redis.unreachable", error=str(error))
            await asyncio.sleep(min(timeout_s, 1.0))
            return []

    def take_lost(self) -> list[LostSample]:
        """Return the samples whose records were moved to the dead letters as unreadable since the last call."""
        lost, self._lost = self._lost, []
        return lost

    async def bury(self, scored: ScoredTrajectory, reason: str) -> None:
        """Move a delivery that is of no use to this run to the dead letters."""
        for delivery in [one for one in self._held.values() if one.body is scored]:
            await self._consumer.bury(delivery, reason)
            del self._held[delivery.id]

    async def acknowledge(self, is_open: Callable[[str], bool]) -> int:
        """Acknowledge the deliveries of every group that is no longer open, and return how many there were."""
        settled = [delivery for delivery, held in self._held.items() if not is_open(held.body.trajectory.group_id)]
        if settled:
            await self._consumer.ack(settled)
        for delivery in settled:
            del self._held[delivery]
        return len(settled)

    async def _recover(self) -> None:
        lease_s = 0.001
        recovering = self._make_consumer(lease_s)
        while True:
            known = len(self._held)
            await asyncio.sleep(2 * lease_s)
            batch = await self._take(recovering, 100_000, timeout_s=0.001)
            self._recovered += batch
            if len(self._held) == known:
                break
        if self._recovered:
            log.info("trajectories.recovered", count=len(self._recovered))

    async def _take(
        self, consumer: StreamConsumer[ScoredTrajectory], count: int, timeout_s: float
    ) -> list[ScoredTrajectory]:
        deliveries = await consumer.receive(count, max(1, int(timeout_s * 1000)))
        fresh = [delivery for delivery in deliveries if delivery.id not in self._held]
        for delivery in fresh:
            self._held[delivery.id] = delivery
        return [delivery.body for delivery in fresh]

    def _note_lost(self, body: bytes) -> None:
        log.error("trajectory.unreadable", stream=self._stream)
        try:
            trajectory = json.loads(body)["trajectory"]
            lost = LostSample(str(trajectory["group_id"]), int(trajectory["sample"]), int(trajectory.get("replay", 0)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
            return  # its group is unknown: waiting for it ends with a stall, and then it is requested again
        self._lost.append(lost)

    async def _extend_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            if not self._held:
                continue
            started = time.monotonic()
            try:
                await self._consumer.extend(list(self._held))
            except OUTAGE as error:
                log.warning("leases.not_extended", held=len(self._held), error=str(error))
            if (took := time.monotonic() - started) > self._lease_s:
                log.warning("leases.extended_late", seconds=round(took, 1))
