"""Groups played on request over HTTP, outside the stream."""

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Sequence

import structlog
from gymfleet_contracts.rollout import GroupRequest, Job, JobState, SubmitJob
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.streams import MAX_SEARCH_TREES
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_kit.problems import ServiceError

from gymfleet_rollout.errors import QueueFull, UnknownJob
from gymfleet_rollout.inference.base import EngineDied
from gymfleet_rollout.player import Player
from gymfleet_rollout.worker import Output

log = structlog.get_logger()


class _Running:
    """A job and its results so far."""

    def __init__(self, job_id: str, body: SubmitJob) -> None:
        self.job_id = job_id
        self.body = body
        self.num_episodes = sum(group.num_samples for group in body.groups)
        self.trajectories: list[Trajectory] = []
        self.trees: list[SearchTree] = []
        self.state = JobState.RUNNING
        self.error: str | None = None
        self.task: asyncio.Task[None] | None = None

    def view(self) -> Job:
        return Job(
            job_id=self.job_id,
            state=self.state,
            num_episodes=self.num_episodes,
            num_finished=len(self.trajectories),
            status_counts=dict(Counter(trajectory.status.value for trajectory in self.trajectories)),
            error=self.error,
        )


class Jobs:
    """The jobs of this process. Finished ones are forgotten, oldest first, when room is needed.

    Args:
        max_trajectories: limit for the episodes of all jobs together, waiting or kept.
    """

    def __init__(self, player: Player, output: Output, *, max_trajectories: int) -> None:
        self._player = player
        self._output = output
        self._max = max_trajectories
        self._jobs: OrderedDict[str, _Running] = OrderedDict()

    def submit(self, body: SubmitJob) -> Job:
        """Start a job.

        Raises QueueFull when the running jobs leave no room, UnknownFormat, RefusedTemplate and UnknownStrategy.
        """
        for group in body.groups:
            self._player.require_playable(group)
        job = _Running(secrets.token_urlsafe(12), body)
        self._make_room(job.num_episodes)
        self._jobs[job.job_id] = job
        job.task = asyncio.create_task(self._run(job))
        return job.view()

    async def check(self, body: SubmitJob) -> None:
        """Check that the groups of a job could be played. Raises what `Player.require_suited` raises."""
        for group in body.groups:
            await self._player.require_suited(group)

    def get(self, job_id: str) -> Job:
        """Return the progress of a job. Raises UnknownJob."""
        return self._find(job_id).view()

    def trajectories(self, job_id: str, offset: int, limit: int) -> Sequence[Trajectory]:
        """Return finished episodes in the order in which they ended. Raises UnknownJob."""
        return self._find(job_id).trajectories[offset : offset + limit]

    def trees(self, job_id: str, offset: int, limit: int) -> Sequence[SearchTree]:
        """Return the records of the first searches, in the order in which they ended. Raises UnknownJob."""
        return self._find(job_id).trees[offset : offset + limit]

    async def cancel(self, job_id: str) -> Job:
        """End a job: its sessions are closed, and finished episodes are kept. Raises UnknownJob."""
        job = self._find(job_id)
        if job.task is not None and not job.task.done():
            job.task.cancel()
            await asyncio.wait([job.task])
            if job.state is JobState.RUNNING:  # cancelled before its task began
                job.state = JobState.CANCELLED
        return job.view()

    async def close(self) -> None:
        """Cancel the running jobs."""
        for job_id in list(self._jobs):
            await self.cancel(job_id)

    async def _run(self, job: _Running) -> None:
        try:
            await self._play_all(job)
            job.state = JobState.DONE
        except asyncio.CancelledError:
            job.state = JobState.CANCELLED
        except (EngineDied, ServiceError) as error:
            job.state, job.error = JobState.FAILED, str(error)
            log.error("job.failed", job_id=job.job_id, error=job.error)
        except Exception as error:
            job.state, job.error = JobState.FAILED, "internal error; see the service's log"
            log.error("job.failed", job_id=job.job_id, exc_info=error)

    async def _play_all(self, job: _Running) -> None:
        """Play all samples. Raises the first failure itself, not the exception group that wraps it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for group in job.body.groups:
                    tasks.create_task(self._play(job, group))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _play(self, job: _Running, group: GroupRequest) -> None:
        async def keep(trajectories: list[Trajectory]) -> None:
            if job.body.publish:
                await self._output.put(group, trajectories)
            job.trajectories += trajectories

        async def keep_tree(tree: SearchTree) -> None:
            if job.body.publish:
                await self._output.put_tree(tree)
            if len(job.trees) < MAX_SEARCH_TREES:
                job.trees.append(tree)

        await self._player.play(group, group.wanted, keep, keep_tree)

    def _find(self, job_id: str) -> _Running:
        try:
            return self._jobs[job_id]
        except KeyError:
            raise UnknownJob(f"no job {job_id[:64]!r}; finished jobs are forgotten when room is needed") from None

    def _make_room(self, wanted: int) -> None:
        held = sum(job.num_episodes for job in self._jobs.values())
        running = sum(job.num_episodes for job in self._jobs.values() if job.state is JobState.RUNNING)
        if running + wanted > self._max:
            raise QueueFull(
                f"{wanted} episodes do not fit: {running} are running over HTTP, {self._max} are allowed",
                max_episodes=self._max,
            )
        for job_id, job in list(self._jobs.items()):
            if held + wanted <= self._max:
                return
            if job.state is not JobState.RUNNING:
                del self._jobs[job_id]
                held -= job.num_episodes
