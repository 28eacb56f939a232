"""The rollout service as a process: gateway, maze, Redis, reward service and an embedded vLLM are all real."""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_contracts.rollout import (
    EpisodeLimits,
    GroupRequest,
    Job,
    JobState,
    Policy,
    StagedVersion,
    StrategySpec,
    SubmitJob,
)
from gymfleet_contracts.session import OpenSession
from gymfleet_contracts.streams import (
    ROLLOUT_REQUESTS,
    cancelled_run,
    produced_samples,
    trajectories_scored,
)
from gymfleet_contracts.trajectory import FinishReason, ScoredTrajectory, Status, Trajectory
from gymfleet_kit.streams import RedisClient, StreamProducer, connect, disconnect

from tests.fixtures.ports import free_port
from tests.fleet import Fleet, ServiceProcess, script
from tests.models import build_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIMEOUT_S = 90.0
LIMITS = EpisodeLimits(max_turns=3, max_response_tokens=12, max_context_tokens=1024)


@pytest.fixture
def http(maze_fleet: Fleet) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=maze_fleet.rollout.url, timeout=60, trust_env=False) as client:
        yield client


def group(run_id: str, group_id: str = "g0", *, task_index: int = 0, num_samples: int = 4, **more: Any) -> GroupRequest:
    task = OpenSession(env="maze", task_index=task_index)
    fields = {"run_id": run_id, "group_id": group_id, "task": task, "num_samples": num_samples, "limits": LIMITS}
    return GroupRequest.model_validate({**fields, **more})


def finished(http: httpx.Client, *groups: GroupRequest) -> Job:
    answer = http.post("/v1/jobs", json=SubmitJob(groups=groups).model_dump(mode="json"))
    assert answer.status_code == 202, answer.text
    job = Job.model_validate_json(answer.content)
    deadline = time.monotonic() + TIMEOUT_S
    while job.state is JobState.RUNNING:
        assert time.monotonic() < deadline, job
        time.sleep(0.05)
        job = Job.model_validate_json(http.get(f"/v1/jobs/{job.job_id}").content)
    assert job.state is JobState.DONE, job
    return job


def played(http: httpx.Client, *groups: GroupRequest) -> list[Trajectory]:
    job = finished(http, *groups)
    # By b"\n" alone: a random policy writes every kind of line separator.
    lines = http.get(f"/v1/jobs/{job.job_id}/trajectories").content.split(b"\n")[:-1]
    assert len(lines) == job.num_episodes == job.num_finished
    return [Trajectory.model_validate_json(line) for line in lines]


def test_the_policy_plays(http: httpx.Client) -> None:
    trajectories = played(http, group("http"), group("http", "g1", task_index=1))

    assert {t.trajectory_id for t in trajectories} == {f"http/g{g}/{sample}" for g in range(2) for sample in range(4)}
    assert {t.status for t in trajectories} <= {Status.COMPLETED, Status.TRUNCATED}
    assert {(t.group_id, t.task.task_id) for t in trajectories} == {("g0", "small.train.0"), ("g1", "small.train.1")}
    for trajectory in trajectories:
        assert 1 <= len(trajectory.turns) <= LIMITS.max_turns
        assert trajectory.status is Status.COMPLETED or trajectory.finish_reason is FinishReason.MAX_TURNS
        for turn in trajectory.turns:
            assert turn.response_logprobs is not None
            assert len(turn.response_logprobs) == len(turn.response_token_ids) <= LIMITS.max_response_tokens
            assert all(logprob <= 0 for logprob in turn.response_logprobs)
    assert len({t.turns[0].response_token_ids for t in trajectories}) > 1, "samples of a group are drawn apart"


def test_the_expert_demonstrates(http: httpx.Client) -> None:
    limits = EpisodeLimits(max_context_tokens=1024)
    trajectories = played(
        http, group("expert", strategy=StrategySpec(use="expert"), purpose="demonstration", limits=limits)
    )

    for trajectory in trajectories:
        assert (trajectory.status, trajectory.success) == (Status.COMPLETED, True)
        assert (trajectory.policy.model, trajectory.purpose) == ("expert", "demonstration")
        assert all(turn.response_logprobs is None and turn.format_valid for turn in trajectory.turns)


@pytest.mark.parametrize(
    ("task", "error"),
    [
        (OpenSession(env="maze", task_index=10**9), "UnknownTask"),
        (OpenSession(env="no_such_world", task_index=0), "UnknownEnvironment"),
        (OpenSession(env="maze", level="impossible", task_index=0), "UnknownTask"),
    ],
    ids=["task", "environment", "level"],
)
def test_what_does_not_exist_is_an_error_of_its_own(http: httpx.Client, task: OpenSession, error: str) -> None:
    (trajectory,) = played(http, group("wrong", num_samples=1, task=task))

    assert (trajectory.status, trajectory.attempt, trajectory.turns) == (Status.ENV_ERROR, 1, ())
    assert str(trajectory.error).startswith(error)


def test_new_weights_over_http(http: httpx.Client, maze_fleet: Fleet, tmp_path: Path) -> None:
    del maze_fleet
    before = Policy.model_validate_json(http.get("/v1/policy").content)
    path = build_tiny_model(tmp_path / "next", tie_embeddings=False, seed=0)
    version = before.live_version + 1
    body = {"version": version, "weights_path": str(path), "probe_prompts": [[5, 6, 7]], "probe_max_tokens": 4}

    staged = http.post("/v1/policy/versions", json=body)
    conflict = http.post("/v1/policy/versions", json={**body, "version": version + 1})
    committed = http.post(f"/v1/policy/versions/{version}/commit")
    stale = http.post("/v1/policy/versions", json=body)
    broken = http.post("/v1/policy/versions", json={**body, "version": version + 1, "weights_path": "/nowhere"})
    trajectories = played(http, group("published", num_samples=2))

    assert staged.status_code == 201, staged.text
    assert len(StagedVersion.model_validate_json(staged.content).engines[0].samples[0].token_ids) == 4
    assert (conflict.status_code, conflict.json()["type"]) == (409, "/problems/policy-version-conflict")
    assert Policy.model_validate_json(committed.content).live_version == version
    assert (stale.status_code, stale.json()["live_version"]) == (409, version)
    assert (broken.status_code, broken.json()["type"]) == (422, "/problems/policy-update-failed")
    assert {(t.policy.version_min, t.policy.version_max) for t in trajectories} == {(version, version)}


def test_operations(http: httpx.Client) -> None:
    played(http, group("metrics", num_samples=1))

    metrics = http.get("/metrics").text
    assert http.get("/readyz").json() == {"status": "ready"}
    assert 'gymfleet_rollout_episodes_total{env="maze",status="truncated"}' in metrics
    assert "gymfleet_rollout_episodes_in_flight 0.0" in metrics
    assert http.get("/v1/jobs/unknown").json()["type"] == "/problems/unknown-job"
    assert http.post("/v1/jobs", json={"groups": []}).status_code == 422


def test_a_job_can_be_cancelled(http: httpx.Client) -> None:
    limits = EpisodeLimits(max_turns=200, max_response_tokens=4, max_context_tokens=1024)
    long = SubmitJob(groups=tuple(group("long", f"g{place}", num_samples=16, limits=limits) for place in range(40)))
    job_id = http.post("/v1/jobs", json=long.model_dump(mode="json")).json()["job_id"]

    cancelled = Job.model_validate_json(http.delete(f"/v1/jobs/{job_id}").content)

    assert cancelled.state is JobState.CANCELLED
    assert cancelled.num_finished < cancelled.num_episodes


# --- the stream


async def scored(redis: RedisClient, run_id: str, count: int) -> list[ScoredTrajectory]:
    async with asyncio.timeout(TIMEOUT_S):
        while await redis.xlen(trajectories_scored(run_id)) < count:  # noqa: ASYNC110 - another process adds
            await asyncio.sleep(0.05)
    entries: Any = await redis.xrange(trajectories_scored(run_id))
    return [ScoredTrajectory.model_validate_json(fields[b"body"]) for _, fields in entries]


async def test_groups_of_the_stream_come_out_sample_by_sample(maze_fleet: Fleet) -> None:
    redis = connect(maze_fleet.redis.url)
    try:
        producer = StreamProducer(redis, ROLLOUT_REQUESTS)
        # The second stands for a redelivery: two samples of it are out already.
        await redis.sadd(produced_samples("stream", "g1"), "0", "3")
        for place in range(2):
            await producer.publish(group("stream", f"g{place}", task_index=place))

        found = await scored(redis, "stream", 6)
        left = await redis.ttl(produced_samples("stream", "g0"))
    finally:
        await disconnect(redis)

    ids = Counter(item.trajectory.trajectory_id for item in found)
    assert ids == Counter([*(f"stream/g0/{sample}" for sample in range(4)), "stream/g1/1", "stream/g1/2"])
    assert 0 < left <= 24 * 3600


async def test_groups_of_a_stopped_run_are_dropped(maze_fleet: Fleet) -> None:
    redis = connect(maze_fleet.redis.url)
    try:
        producer = StreamProducer(redis, ROLLOUT_REQUESTS)
        await redis.set(cancelled_run("stopped"), "1", ex=600)
        await producer.publish(group("stopped"))
        await producer.publish(group("after"))
        await scored(redis, "after", 4)
        async with asyncio.timeout(TIMEOUT_S):
            while await redis.xlen(ROLLOUT_REQUESTS):  # noqa: ASYNC110 - another process takes
                await asyncio.sleep(0.05)
        produced = await redis.exists(produced_samples("stopped", "g0"))
    finally:
        await disconnect(redis)

    assert not produced


# --- starting


def test_the_process_listens_before_the_engine_is_up_and_ends_when_it_never_is(
    maze_fleet: Fleet, tmp_path: Path
) -> None:
    """With a server that never comes up, `/readyz` and the log say so, and nothing else is served."""
    port, absent = free_port(), free_port()
    settings = {
        "PORT": port, "MODEL": maze_fleet.rollout.settings["GYMFLEET_ROLLOUT_MODEL"], "BACKEND": "server",
        "SERVER_URLS": json.dumps([f"http://127.0.0.1:{absent}"]), "SERVER_START_TIMEOUT_S": 2,
        "REDIS_URL": maze_fleet.redis.url, "GATEWAY_URL": maze_fleet.gateway.url,
    }  # fmt: skip
    environment = {f"GYMFLEET_ROLLOUT_{name}": str(value) for name, value in settings.items()}
    service = ServiceProcess("rollout", [script("gymfleet-rollout")], port, environment, tmp_path / "log")
    reasons: list[str] = []
    refused: list[httpx.Response] = []
    service.start()
    assert service.process is not None
    try:
        deadline = time.monotonic() + TIMEOUT_S
        with httpx.Client(base_url=service.url, trust_env=False) as client:
            while service.process.poll() is None:
                assert time.monotonic() < deadline, (reasons, service.tail())
                with contextlib.suppress(httpx.TransportError):
                    answer = client.get("/readyz")
                    assert answer.status_code == 503
                    reasons.append(answer.json()["detail"])
                    refused.append(client.get("/v1/policy"))
                time.sleep(0.05)
        code = service.process.poll()
    finally:
        service.stop()

    assert reasons[0] == "the engine is starting"
    assert (refused[0].status_code, refused[0].json()["type"]) == (503, "/problems/unavailable")
    assert code == 1, "who starts it again may have more luck"
    assert f"no vLLM server at http://127.0.0.1:{absent} within 2 s" in service.tail()
