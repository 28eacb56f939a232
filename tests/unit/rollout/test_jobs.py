"""Jobs over HTTP: progress, cancellation, and what is kept."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.rollout import GroupRequest, JobState, SubmitJob
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.trajectory import Status, Trajectory
from gymfleet_rollout.errors import QueueFull, UnknownFormat, UnknownJob
from gymfleet_rollout.inference.base import EngineDied
from gymfleet_rollout.jobs import Jobs
from gymfleet_rollout.player import Deliver, DeliverTree

from tests.fixtures.trajectories import make_search_tree, make_trajectory


class Stage:
    """A player that waits for `go`; it also takes what is published."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.error: Exception | None = None
        self.published: list[tuple[str, int]] = []
        self.published_trees: list[str] = []

    def require_playable(self, group: GroupRequest) -> None:
        if group.format.use != "react":
            raise UnknownFormat("as planned")

    async def play(
        self, group: GroupRequest, samples: Sequence[int], deliver: Deliver, deliver_tree: DeliverTree
    ) -> None:
        await self.go.wait()
        if self.error is not None:
            raise self.error
        await deliver_tree(make_search_tree(group.group_id))
        for sample in samples:
            await deliver([make_trajectory((3,), sample=sample, status=Status.COMPLETED)])

    async def put(self, group: GroupRequest, trajectories: list[Trajectory]) -> None:
        self.published += [(group.group_id, trajectory.sample) for trajectory in trajectories]

    async def put_tree(self, tree: SearchTree) -> None:
        self.published_trees.append(tree.group_id)


def submission(num_samples: int, groups: int = 1, **more: Any) -> SubmitJob:
    task = OpenSession(env="maze", task_index=0)
    return SubmitJob(
        groups=tuple(
            GroupRequest(run_id="r", group_id=f"g{place}", task=task, num_samples=num_samples)
            for place in range(groups)
        ),
        **more,
    )


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def jobs(stage: Stage) -> Jobs:
    return Jobs(stage, stage, max_trajectories=10)  # type: ignore[arg-type]


async def finished(jobs: Jobs, job_id: str) -> JobState:
    async with asyncio.timeout(5):
        while jobs.get(job_id).state is JobState.RUNNING:  # noqa: ASYNC110 - as a caller over HTTP would
            await asyncio.sleep(0.001)
    return jobs.get(job_id).state


async def test_a_format_that_cannot_be_used_is_refused_at_once(jobs: Jobs) -> None:
    body = submission(3)
    morse = body.groups[0].model_copy(update={"format": FormatSection(use="morse")})

    with pytest.raises(UnknownFormat):
        jobs.submit(body.model_copy(update={"groups": (*body.groups, morse)}))


async def test_a_job_from_begin_to_end(jobs: Jobs, stage: Stage) -> None:
    job = jobs.submit(submission(3, groups=2))
    assert (job.state, job.num_episodes, job.num_finished) == (JobState.RUNNING, 6, 0)

    stage.go.set()

    assert await finished(jobs, job.job_id) is JobState.DONE
    assert jobs.get(job.job_id).status_counts == {"completed": 6}
    assert len(jobs.trajectories(job.job_id, 0, 100)) == 6
    assert len(jobs.trajectories(job.job_id, 4, 100)) == 2
    assert len(jobs.trajectories(job.job_id, 1, 2)) == 2
    assert [tree.group_id for tree in jobs.trees(job.job_id, 0, 10)] == ["g0", "g1"]
    assert [tree.group_id for tree in jobs.trees(job.job_id, 1, 10)] == ["g1"]
    assert (stage.published, stage.published_trees) == ([], [])


async def test_a_job_that_publishes(jobs: Jobs, stage: Stage) -> None:
    stage.go.set()
    job = jobs.submit(submission(2, publish=True))

    await finished(jobs, job.job_id)

    assert sorted(stage.published) == [("g0", 0), ("g0", 1)]
    assert stage.published_trees == ["g0"]


async def test_a_job_keeps_so_many_searches(jobs: Jobs, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gymfleet_rollout.jobs.MAX_SEARCH_TREES", 2)
    stage.go.set()
    job = jobs.submit(submission(1, groups=3))

    await finished(jobs, job.job_id)

    assert [tree.group_id for tree in jobs.trees(job.job_id, 0, 10)] == ["g0", "g1"]


async def test_a_cancelled_job(jobs: Jobs) -> None:
    job = jobs.submit(submission(2))
    await asyncio.sleep(0)

    cancelled = await jobs.cancel(job.job_id)

    assert cancelled.state is JobState.CANCELLED
    assert (await jobs.cancel(job.job_id)).state is JobState.CANCELLED


async def test_a_job_that_is_cancelled_before_it_began(jobs: Jobs) -> None:
    job = jobs.submit(submission(2))

    assert (await jobs.cancel(job.job_id)).state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("error", "words"),
    [(EngineDied("the embedded engine died"), "engine died"), (ValueError("inner workings"), "internal error")],
)
async def test_a_failed_job_says_why(jobs: Jobs, stage: Stage, error: Exception, words: str) -> None:
    stage.error = error
    stage.go.set()
    job = jobs.submit(submission(2))

    assert await finished(jobs, job.job_id) is JobState.FAILED
    assert words in str(jobs.get(job.job_id).error)
    assert "inner" not in str(jobs.get(job.job_id).error)


async def test_memory_is_bounded(jobs: Jobs, stage: Stage) -> None:
    stage.go.set()
    old = [jobs.submit(submission(4)).job_id for _ in range(2)]
    for job_id in old:
        await finished(jobs, job_id)
    stage.go.clear()

    running = jobs.submit(submission(6))

    with pytest.raises(UnknownJob):
        jobs.get(old[0])
    assert jobs.get(old[1]).state is JobState.DONE
    with pytest.raises(QueueFull, match="6 are running"):
        jobs.submit(submission(5))
    await jobs.close()
    assert jobs.get(running.job_id).state is JobState.CANCELLED
