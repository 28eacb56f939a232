"""Request groups and wait for them, while watching the services that produce them."""

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet

import structlog
from gymfleet_contracts.rollout import GroupRequest, Policy
from gymfleet_contracts.streams import ROLLOUT_REQUESTS, dead_letters
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_kit.streams import OUTAGE, RedisClient, StreamProducer

from gymfleet_trainer.errors import Stalled
from gymfleet_trainer.metrics import BURIED, REPLAYED, UNREWARDED
from gymfleet_trainer.publish.policy_endpoint import readiness
from gymfleet_trainer.publish.rollout_replicas import RolloutReplicas
from gymfleet_trainer.run.groups import Group, GroupBook, is_failure
from gymfleet_trainer.run.replays import Patience, Referee
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.search_trees import keep_search_trees
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.run.trajectory_consumer import LostSample, TrajectoryConsumer
from gymfleet_trainer.settings import TrainerSettings

log = structlog.get_logger()

BringUp = Callable[[RunState, Mapping[str, Policy]], Awaitable[bool]]
_RECEIVE_S = 0.5
_GLANCE_S = 1.0
_MAX_LOST = 10_000


class Collector:
    """Publish requests and hand out groups as they complete.

    A training sample that failed is requested again within its group, as is one whose record is of no use to
    this run; measurements and the warm start handle their own failures. Failures from before this process began
    do not count: their cause may have been fixed, so every such sample is requested again.

    While it waits, it polls the live policy version of every rollout replica: a replica that was
    started or restarted lacks the newest weights and gets them. If there is no sign of
    progress for `stall_timeout_s`, the open requests are sent once more (their ids
    make that harmless); after that the run stops and names the services that did not answer.
    """

    def __init__(
        self,
        redis: RedisClient,
        consumer: TrajectoryConsumer,
        replicas: RolloutReplicas,
        settings: TrainerSettings,
        state: RunState,
        bring_up: BringUp,
        referee: Referee,
    ) -> None:
        self._redis = redis
        self._consumer = consumer
        self._producer = StreamProducer(redis, ROLLOUT_REQUESTS)
        self._replicas = replicas
        self._settings = settings
        self._state = state
        self._bring_up = bring_up
        self._book = GroupBook(state.settled_before())
        self._referee = referee
        self._patience = Patience(settings.max_replacements)
        self._ready: dict[str, Group] = {}
        self._num_completed = 0
        self._lost: list[LostSample] = []
        self._progress_at = 0.0
        self._polled_at = 0.0
        self._tokens_generated: dict[str, tuple[int, int]] = {}
        self._asked_again = False
        self._began_at = time.time()

    @property
    def num_open(self) -> int:
        """Return the number of groups that were requested and are not settled."""
        return len(self._book)

    @property
    def num_held(self) -> int:
        """Return the number of deliveries that are not acknowledged."""
        return self._consumer.num_held

    async def ask(self, requests: Iterable[GroupRequest]) -> None:
        """Request groups. A group that is already open is not requested again."""
        for request in requests:
            if request.group_id in self._book:
                continue
            if (group := self._book.add(request)) is not None:
                self._completed(group)
            else:
                await self._producer.publish(request)
            await self._replay_early(request.group_id)

    async def _replay_early(self, group_id: str) -> None:
        """Handle failed samples that arrived before this process had requested their group."""
        if (group := self._book.get(group_id)) is not None:
            for scored in group.failed:
                await self._failed(scored)

    def env_steps(self, group_id: str) -> int:
        """Return the environment steps of an open group: those of its search, only part of which its samples show."""
        group = self._book.get(group_id)
        shown = 0 if group is None else group.env_steps
        return max(shown, self._state.searched.get(group_id, 0))

    def settle(self, group_id: str) -> None:
        """Mark a group as trained, measured or dropped, to be acknowledged with the next checkpoint."""
        self._book.settle(group_id)
        self._ready.pop(group_id, None)
        self._patience.forget(group_id)

    def settled(self) -> frozenset[str]:
        """Return the groups with pending deliveries that a checkpoint made now contains, because they are settled."""
        return frozenset(group_id for group_id in self._consumer.groups if not self._book.needs(group_id))

    async def acknowledge(self, settled: AbstractSet[str]) -> int:
        """Acknowledge the deliveries of these groups. Call it once the checkpoint that contains them is on disk."""
        return await self._consumer.acknowledge(lambda group_id: group_id not in settled)

    async def keep_search_trees(self, directory: RunDirectory) -> None:
        """Append new searches from the run's stream to its files. Call it before a checkpoint notes the files."""
        await keep_search_trees(self._redis, self._state, directory)

    async def close(self) -> None:
        """Stop receiving. Call it before the run's stream is deleted, or extending a lease would recreate it."""
        await self._consumer.close()

    @property
    def ready(self) -> Mapping[str, Group]:
        """Return the groups that are complete and not settled, by id."""
        return self._ready

    async def next_group(self, wanted: Callable[[str], bool]) -> Group:
        """Return the next complete group whose id is wanted; each group is handed out once.

        Raises:
            Stalled: there was no progress at all for `stall_timeout_s`, twice.
        """
        while (group_id := next(filter(wanted, self._ready), None)) is None:
            await self.more()
        return self._ready.pop(group_id)

    async def more(self) -> None:
        """Wait until one more group is complete. Raises Stalled."""
        self._progressed()
        before = self._num_completed
        while self._num_completed == before:
            arrivals = await self._consumer.receive(_RECEIVE_S)
            now = time.time()
            for scored in arrivals:
                await self._place(scored, now)
            await self._replace_lost()
            if arrivals:
                self._progressed()
            await self._watch()

    def _completed(self, group: Group) -> None:
        self._ready[group.group_id] = group
        self._num_completed += 1

    async def _place(self, scored: ScoredTrajectory, now: float) -> None:
        trajectory = scored.trajectory
        self._state.count("trajectories_received")
        if self._book.is_settled(trajectory.group_id):
            return
        if fault := self._referee.fault(scored):
            await self._bury(scored, fault)
            return
        if trajectory.status.trainable and scored.reward is None:
            self._state.count("trajectories_without_reward")
            UNREWARDED.inc()
            log.warning("trajectory.without_reward", id=trajectory.trajectory_id, reason=scored.reward_error)
        self._patience.note(scored)
        ended_at = trajectory.started_at + trajectory.duration_s
        waited_s = max(0.0, now - ended_at) if trajectory.started_at else 0.0
        group = self._book.place(scored, waited_s)
        if is_failure(scored):
            await self._failed(scored)
        elif group is not None:
            self._completed(group)

    async def _failed(self, scored: ScoredTrajectory) -> None:
        """Request a failed sample again, or leave it in its group, which is then refused or replays it itself."""
        trajectory = scored.trajectory
        group = self._book.get(trajectory.group_id)
        if group is None or group.samples.get(trajectory.sample) is not scored:
            return
        of_the_past = 0 < trajectory.started_at + trajectory.duration_s < self._began_at
        if of_the_past or (trajectory.purpose == "train" and self._patience.allows(group, trajectory.sample)):
            reason = trajectory.error or scored.reward_error or trajectory.status.value
            await self._ask_sample(group, trajectory.sample, trajectory.replay + 1, reason)
        elif group.complete:
            self._completed(group)

    async def _bury(self, scored: ScoredTrajectory, fault: str) -> None:
        trajectory = scored.trajectory
        log.error("trajectory.buried", id=trajectory.trajectory_id, reason=fault)
        self._state.count("trajectories_buried")
        BURIED.inc()
        await self._consumer.bury(scored, fault)
        self._lost.append(LostSample(trajectory.group_id, trajectory.sample, trajectory.replay))

    async def _replace_lost(self) -> None:
        """Request samples again whose records were moved to the dead letters; they wait until their group is open."""
        unreadable = self._consumer.take_lost()
        if unreadable:
            self._state.count("trajectories_unreadable", len(unreadable))
            BURIED.inc(len(unreadable))
        lost, self._lost = [*self._lost, *unreadable], []
        for one in lost:
            group = self._book.get(one.group_id)
            if group is None:
                if not self._book.is_settled(one.group_id):
                    self._lost = [*self._lost, one][-_MAX_LOST:]
            elif one.sample in group.missing and one.replay >= group.replays.get(one.sample, 0):
                if group.request.purpose == "train" and self._patience.allows(group, one.sample):
                    await self._ask_sample(group, one.sample, one.replay + 1, "its record was buried")
                    continue
                group.lost[one.sample] = "its record was buried"
                if group.complete:
                    self._completed(group)

    async def _ask_sample(self, group: Group, sample: int, replay: int, reason: str) -> None:
        log.warning("sample.replayed", group_id=group.group_id, sample=sample, replay=replay, reason=reason)
        self._state.count("samples_replayed")
        REPLAYED.inc()
        self._book.reopen(group, sample, replay)
        self._ready.pop(group.group_id, None)
        await self._producer.publish(group.again((sample,), replay))

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
        present = await self._replicas.glance(timeout_s=_GLANCE_S)
        # Tokens count as progress too: a few long replies may take longer than the stall timeout.
        tokens = {url: (policy.tokens_generated, policy.tokens_sampled) for url, policy in present.items()}
        if tokens.items() - self._tokens_generated.items():
            self._tokens_generated |= tokens
            # Requests that were sent once more are sampled too, which alone must not keep the run waiting for ever.
            self._progress_at = time.monotonic()
        if self._state.version and await self._bring_up(self._state, present):
            self._state.count("republished")
            self._progressed()

    async def _ask_again(self) -> None:
        """Request missing samples under a new replay number: they may be lost although marked as produced."""
        incomplete = self._book.incomplete()
        log.warning("groups.asked_again", count=len(incomplete), groups=[group.group_id for group in incomplete[:5]])
        replay = int(time.time())  # above every number that this or an earlier process of the run has used
        for group in incomplete:
            await self._producer.publish(group.again(tuple(group.missing), replay))

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
            f"{await self._replicas.readiness()}; gateway /readyz says: {await readiness(self._settings.gateway_url)}; "
            f"{letters}. Start what is missing (is the reward service running?) and run the same command again"
        )
