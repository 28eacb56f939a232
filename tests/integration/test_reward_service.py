"""The reward service as a process, on a real Redis."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from gymfleet_contracts.problems import PROBLEM_MEDIA_TYPE
from gymfleet_contracts.reward import ScoreBatch, ScoredBatch, ScoreRequest
from gymfleet_contracts.streams import TRAJECTORIES_RAW, cancelled_run, trajectories_scored
from gymfleet_contracts.trajectory import Status
from gymfleet_kit.streams import Delivery, RedisClient, StreamProducer
from gymfleet_reward.composer import Scorer
from gymfleet_reward.settings import RewardSettings
from gymfleet_reward.worker import RewardWorker

from tests.fixtures.redis_server import RedisServer
from tests.fixtures.rewards import collect, make_spec
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.trajectories import make_trajectory

PREFIX = "GYMFLEET_REWARD_"


@pytest.fixture(scope="module")
def service(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    log = tmp_path_factory.mktemp("reward") / "log"
    with ServiceProcess("gymfleet-reward", PREFIX, {"redis_url": redis_url}, log) as process:
        yield process


async def test_raw_trajectories_come_out_scored_on_their_own_runs_stream(
    service: ServiceProcess, redis: RedisClient
) -> None:
    producer = StreamProducer(redis, TRAJECTORIES_RAW)
    spec = make_spec(format={"weight": 0.5}, allocation="uniform_positive")
    solved = make_trajectory((3, 2), sample=0, run_id="one")
    broken = make_trajectory((), sample=1, run_id="one", status=Status.ENV_ERROR, success=False, error="it died")
    other = make_trajectory((4,), sample=0, run_id="two", success=False)

    for trajectory in (solved, broken, other):
        await producer.publish(ScoreRequest(trajectory=trajectory, reward=spec))
    one = {scored.trajectory.sample: scored for scored in await collect(redis, "one", 2)}
    (two,) = await collect(redis, "two", 1)

    assert one[0].trajectory == solved
    assert one[0].reward is not None
    assert one[0].reward.total == pytest.approx(1.5)
    assert [token for turn in one[0].reward.token_rewards for token in turn] == pytest.approx([0.3] * 5)
    assert one[1].trajectory == broken
    assert one[1].reward is None
    assert two.reward is not None
    assert two.reward.total == pytest.approx(-0.5)
    assert two.reward.token_rewards == ((0.0, 0.0, 0.0, -0.5),)
    async with asyncio.timeout(60):
        while await redis.xlen(TRAJECTORIES_RAW):  # noqa: ASYNC110 - acknowledged after the publication
            await asyncio.sleep(0.02)


async def test_a_trajectory_that_cannot_be_read_does_not_hold_up_the_others(
    service: ServiceProcess, redis: RedisClient
) -> None:
    await redis.xadd(TRAJECTORIES_RAW, {"body": '{"trajectory": 1}'})
    await StreamProducer(redis, TRAJECTORIES_RAW).publish(ScoreRequest(trajectory=make_trajectory(run_id="three")))

    assert len(await collect(redis, "three", 1)) == 1
    assert await redis.xlen(f"{TRAJECTORIES_RAW}:dead") == 1


def test_scores_over_http_in_the_order_of_the_request(service: ServiceProcess) -> None:
    items = tuple(
        ScoreRequest(trajectory=make_trajectory(sample=n, success=n % 2 == 0, status=status))
        for n, status in enumerate([Status.COMPLETED, Status.TRUNCATED, Status.TIMEOUT])
    )

    response = httpx.post(f"{service.url}/v1/scores", json=ScoreBatch(items=items).model_dump(mode="json"))

    assert response.status_code == 200
    scored = ScoredBatch.model_validate_json(response.content).items
    assert [item.trajectory.sample for item in scored] == [0, 1, 2]
    assert [item.reward and item.reward.total for item in scored] == [1.0, -1.0, None]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        pytest.param({"items": []}, "/body/items", id="nothing to score"),
        pytest.param({"item": []}, "/body/item", id="unknown field"),
        pytest.param({"items": [{"trajectory": {}}]}, "/body/items/0/trajectory/turns", id="no trajectory"),
    ],
)
def test_a_bad_request_is_told_which_field_is_wrong(service: ServiceProcess, body: object, pointer: str) -> None:
    response = httpx.post(f"{service.url}/v1/scores", json=body)

    assert response.status_code == 422
    assert response.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert pointer in [fault["pointer"] for fault in response.json()["errors"]]


def test_operations(service: ServiceProcess) -> None:
    assert httpx.get(f"{service.url}/healthz").json() == {"status": "ok"}
    metrics = httpx.get(f"{service.url}/metrics").text
    assert "gymfleet_reward_scored_total" in metrics
    assert "\ngymfleet_ready 1.0\n" in metrics
    assert "\ngymfleet_redis_durable 1.0\n" in metrics
    assert f'\ngymfleet_stream_backlog{{stream="{TRAJECTORIES_RAW}"}}' in metrics
    assert "/v1/scores" in httpx.get(f"{service.url}/openapi.json").json()["paths"]


def test_ready_only_while_redis_answers_and_ends_cleanly(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        service = ServiceProcess("gymfleet-reward", PREFIX, {"redis_url": redis.url}, tmp_path / "log")
        service.start()
        redis.stop()
        away = httpx.get(f"{service.url}/readyz")
        redis.start()
        service_is_back = [httpx.get(f"{service.url}/readyz").status_code for _ in range(2)][-1]
        exit_code = service.stop(signal.SIGTERM)

    assert away.status_code == 503
    assert "Redis does not answer" in away.json()["detail"]
    assert service_is_back == 200
    assert exit_code == 0
    assert "Traceback" not in service.log.read_text()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        pytest.param({"GYMFLEET_REWARD_REDIS_ULR": "redis://x"}, "GYMFLEET_REWARD_REDIS_ULR", id="misspelt"),
        pytest.param({"GYMFLEET_REWARD_PORT": "many"}, "GYMFLEET_REWARD_PORT", id="not a port"),
        pytest.param({"GYMFLEET_REWARD_REDIS_URL": "http://x"}, "GYMFLEET_REWARD_REDIS_URL", id="not a Redis"),
    ],
)
def test_a_mistaken_setting_is_one_line_and_exit_code_2(variables: dict[str, str], named: str) -> None:
    result = _run_to_the_end(variables)

    assert result.returncode == 2
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_port_in_use_is_one_line_and_exit_code_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = _run_to_the_end({"GYMFLEET_REWARD_PORT": str(port)})

    assert result.returncode == 2
    assert result.stderr.splitlines() == [
        f"error: 127.0.0.1:{port} is in use by another process; choose another port"
    ]  # fmt: skip


async def test_a_run_that_was_stopped_for_good_does_not_block_the_others(redis: RedisClient) -> None:
    settings, scorer, threads = RewardSettings(max_scored_backlog=1), Scorer(), ThreadPoolExecutor(1)
    worker = RewardWorker(redis, settings, scorer, threads, full_timeout_s=0.1)
    delivery = Delivery("1-1", 1, ScoreRequest(trajectory=make_trajectory(run_id="gone")), None)
    await worker.handle(delivery)  # the only place on the run's stream
    waiting = asyncio.create_task(worker.handle(delivery))
    await asyncio.sleep(0.3)
    assert not waiting.done(), "the trainer is behind, its run goes on: wait"

    await redis.set(cancelled_run("gone"), "1")
    await asyncio.wait_for(waiting, 60)

    assert await redis.xlen(trajectories_scored("gone")) == 1


def _run_to_the_end(variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return subprocess.run(
        [sys.executable, "-m", "gymfleet_reward.main"],
        env=clean | variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
