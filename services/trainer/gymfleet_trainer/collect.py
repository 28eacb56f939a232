"""Asking for groups and waiting for them, with a watch on those who are waited for."""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping

import structlog
from gymfleet_contracts.rollout import GroupRequest, Policy
from gymfleet_contracts.streams import ROLLOUT_REQUESTS, dead_letters
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.streams import OUTAGE, RedisClient, StreamProducer

from gymfleet_trainer.errors import Stalled
from gymfleet_trainer.fleet import PolicyFleet
from gymfleet_trainer.groups import Group, GroupBook
from gymfleet_trainer.intake import Intake
from gymfleet_trainer.settings import TrainerSettings
from gymfleet_trainer.state import RunState
from gymfleet_trainer.versions import readiness

log = structlog.get_logger()

BringUp = Callable[[RunState, Mapping[str, Policy]], Awaitable[bool]]
_RECEIVE_S = 0.5
_GLANCE_S = 1.0


class Collector:
    """Publishes requests and hands out groups as they complete.

    While it waits it polls the live policy version of every rollout replica: one that was
    started or restarted lacks the newest weights and gets them. Without any sign of
    progress for `stall_timeout_s` the open requests are sent once more (their ids
    make that harmless), and then the run stops and says who did not answer.
    """

    def __init__(
        self,
        redis: RedisClient,
        intake: Intake,
        fleet: PolicyFleet,
        settings: TrainerSettings,
        state: RunState,
        bring_up: BringUp,
    ) -> None:
        self._redis = redis
        self._intake = intake
        self._producer = StreamProducer(redis, ROLLOUT_REQUESTS)
        self._fleet = fleet
        self._settings = settings
        self._state = state
        self._bring_up = bring_up
        self._book = GroupBook(state.settled_before())
        self._ready: deque[Group] = deque()
        self._progress_at = 0.0
        self._polled_at = 0.0
        self._tokens_generated: dict[str, int] = {}
        self._asked_again = False

    @property
    def num_open(self) -> int:
        """Groups that are asked for and not settled."""
        return len(self._book)

    @property
    def num_held(self) -> int:
        """Deliveries that are not acknowledged."""
        return self._intake.num_held

    async def ask(self, requests: Iterable[GroupRequest]) -> None:
        """Ask for groups. One that is open already is not asked for again."""
        for request in requests:
            if request.group_id in self._book:
                continue
            if (group := self._book.add(request)) is not None:
                self._ready.append(group)
            else:
                await self._producer.publish(request)

    def settle(self, group_id: str) -> None:
        """The group is trained, measured or dropped: acknowledged with the next checkpoint."""
        self._book.settle(group_id)

    async def acknowledge(self) -> int:
        """Acknowledge what belongs to settled groups. Call after the checkpoint that says so is on the disk."""
        return await self._intake.acknowledge(self._book.needs)

    async def close(self) -> None:
        """Receive no more; done before the run's stream is deleted, or a renewal would make it anew."""
        await self._intake.close()

    async def next_group(self) -> Group:
        """The next complete group.

        Raises:
            Stalled: nobody showed any progress for `stall_timeout_s`, twice.
        """
        self._progressed()
        while not self._ready:
            arrivals = await self._intake.receive(_RECEIVE_S)
            now = time.time()
            for scored in arrivals:
                self._place(scored, now)
            if arrivals:
                self._progressed()
            await self._watch()
        return self._ready.popleft()

    def _place(self, scored: ScoredTrajectory, now: float) -> None:
        trajectory = scored.trajectory
        self._state.count("trajectories_received")
        ended_at = trajectory.started_at + trajectory.duration_s
        waited_s = max(0.0, now - ended_at) if trajectory.started_at else 0.0
        group = self._book.place(scored, waited_s)
        if group is not None:
            self._ready.append(group)

    def _progressed(self) -> None:
        self._progress_at = time.monotonic()
        self._asked_again = False

    async def _watch(self) -> None:
        now = time.monotonic()
        if now - self._polled_at >= self._settings.policy_poll_s:
            await self._poll()
            self._polled_at = time.monotonic()
        if now - self._progress_at < self._settings.stall_timeout_s:
            return
        if self._asked_again:
            raise Stalled(await self._reason())
        await self._ask_again()
        self._asked_again = True
        self._progress_at = time.monotonic()

    async def _poll(self) -> None:
        present = await self._fleet.glance(timeout_s=_GLANCE_S)
        tokens = {url: policy.tokens_generated for url, policy in present.items()}
        if tokens.items() - self._tokens_generated.items():
            self._tokens_generated |= tokens
            self._progressed()
        if self._state.version and await self._bring_up(self._state, present):
            self._state.count("republished")
            self._progressed()

    async def _ask_again(self) -> None:
        incomplete = self._book.incomplete()
        log.warning("groups.asked_again", count=len(incomplete), groups=[group.group_id for group in incomplete[:5]])
        for group in incomplete:
            await self._producer.publish(group.request)

    async def _reason(self) -> str:
        waiting = self._book.incomplete()
        try:
            dead = await self._redis.xlen(dead_letters(ROLLOUT_REQUESTS))
            letters = f"{dead} dead requests"
        except OUTAGE as error:
            letters = f"Redis does not answer ({type(error).__name__})"
        return (
            f"no scored trajectory for {self._settings.stall_timeout_s:g} s, twice; {len(waiting)} groups are open "
            f"(first: {waiting[0].group_id if waiting else 'none'}); rollout: "
            f"{await self._fleet.readiness()}; gateway /readyz says: {await readiness(self._settings.gateway_url)}; "
            f"{letters}. Start what is missing (is the reward service running?) and run the same command again"
        )
