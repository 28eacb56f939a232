"""The stream worker: it takes raw trajectories and puts scored ones on the run's own stream."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

import structlog
from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.streams import (
    REWARD_GROUP,
    ROLLOUT_REQUESTS,
    TRAJECTORIES_RAW,
    cancelled_run,
    trajectories_scored,
)
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.streams import Delivery, RedisClient, StreamConsumer, StreamFull, StreamProducer

from gymfleet_reward.composer import Scorer
from gymfleet_reward.groups import HeldGroups
from gymfleet_reward.settings import RewardSettings

log = structlog.get_logger()
A = TypeVar("A")
T = TypeVar("T")
MAX_OPEN_RUNS: Final = 64
_LONGEST_GLANCE_S: Final = 10.0


class RewardWorker:
    """Compute the rewards of the trajectories that the rollout service produced.

    Delivery is at least once on both sides: after a crash a trajectory is scored
    again and may be on the scored stream twice, under the same `trajectory_id`.
    """

    def __init__(
        self,
        redis: RedisClient,
        settings: RewardSettings,
        scorer: Scorer,
        threads: Executor,
        *,
        full_timeout_s: float = 60.0,
    ) -> None:
        self._redis = redis
        self._scorer = scorer
        self._threads = threads
        self._settings = settings
        self._full_timeout_s = full_timeout_s
        self._groups = HeldGroups(redis, wait_s=settings.group_wait_s, patience_s=settings.lease_s)
        self._producers: dict[str, StreamProducer] = {}
        self._consumer = StreamConsumer(
            redis,
            TRAJECTORIES_RAW,
            REWARD_GROUP,
            ScoreRequest,
            consumer=settings.consumer,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
        )

    def streams(self) -> list[str]:
        """Return the two shared streams, and those of the runs that were recently scored here."""
        return [ROLLOUT_REQUESTS, TRAJECTORIES_RAW, *(trajectories_scored(run_id) for run_id in self._producers)]

    async def run(self, stop: asyncio.Event) -> None:
        """Run until `stop` is set and the received trajectories are scored."""
        giving_up = asyncio.create_task(self._give_up())
        try:
            await self._consumer.run(self.handle, concurrency=self._settings.concurrency, stop=stop)
        finally:
            giving_up.cancel()
            await asyncio.gather(giving_up, return_exceptions=True)

    async def handle(self, delivery: Delivery[ScoreRequest]) -> None:
        """Score and publish a trajectory. This waits while the trainer is behind, and so holds the rollout back."""
        scored = await self._in_thread(self._scorer.score_alone, delivery.body)
        if scored is not None:
            await self._deliver(scored)
        elif (records := await self._groups.hold(delivery.body)) is not None:
            await self._deliver_group(records)

    async def _deliver_group(self, records: list[bytes]) -> None:
        requests, scored = await self._in_thread(self._scorer.score_records, records)
        for one in scored:
            await self._deliver(one)
        await self._groups.forget(requests)

    async def _give_up(self) -> None:
        """Pass on, without rewards, the episodes of groups that do not become whole."""
        while True:
            await asyncio.sleep(min(self._settings.group_wait_s / 4, _LONGEST_GLANCE_S))
            try:
                while (records := await self._groups.given_up()) is not None:
                    if records:
                        await self._deliver_group(records)
            except Exception:  # the next glance finds them again
                log.exception("group.kept")

    async def _deliver(self, scored: ScoredTrajectory) -> None:
        run_id = scored.trajectory.run_id
        while not await self._publish(run_id, scored):
            if await self._redis.exists(cancelled_run(run_id)):
                # No process will read the stream of a run that was stopped for good.
                log.info("trajectory.dropped", run_id=run_id, trajectory_id=scored.trajectory.trajectory_id)
                return

    async def _in_thread(self, function: Callable[[A], T], argument: A) -> T:
        context = contextvars.copy_context()  # log lines name the trace
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, function, argument)

    async def _publish(self, run_id: str, scored: ScoredTrajectory) -> bool:
        try:
            await self._producer(run_id).publish(scored)
        except StreamFull as error:
            log.warning("trainer.behind", run_id=run_id, detail=error.detail)
            return False
        return True

    def _producer(self, run_id: str) -> StreamProducer:
        producer = self._producers.pop(run_id, None) or StreamProducer(
            self._redis,
            trajectories_scored(run_id),
            max_len=self._settings.max_scored_backlog,
            full_timeout_s=self._full_timeout_s,
        )
        self._producers[run_id] = producer  # the most recently used last
        if len(self._producers) > MAX_OPEN_RUNS:
            del self._producers[next(iter(self._producers))]
        return producer
