"""kill -9 of the reward service in mid-run: every trajectory is scored all the same."""

import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.streams import REWARD_GROUP, TRAJECTORIES_RAW, trajectories_scored
from gymfleet_contracts.trajectory import ScoredTrajectory, Status
from redis import Redis

from tests.fixtures.redis_server import RedisServer
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.trajectories import make_trajectory

NUM_TRAJECTORIES = 600
RUN = "run"
TIMEOUT_S = 90


def wait_for_scored(redis: Any, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while redis.xlen(trajectories_scored(RUN)) < count:
        assert time.monotonic() < deadline, f"{redis.xlen(trajectories_scored(RUN))} of {count} scored"
        time.sleep(0.002)


def num_pending(redis: Any) -> int:
    return int(redis.xpending(TRAJECTORIES_RAW, REWARD_GROUP)["pending"])


def scored_samples(redis: Any) -> list[ScoredTrajectory]:
    entries = redis.xrange(trajectories_scored(RUN))
    return [ScoredTrajectory.model_validate_json(fields[b"body"]) for _, fields in entries]


def test_a_killed_reward_service_loses_nothing(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, Redis(port=server.port) as redis:
        for sample in range(NUM_TRAJECTORIES):
            status = Status.ENV_ERROR if sample % 7 == 0 else Status.COMPLETED
            trajectory = make_trajectory((250, 250), sample=sample, status=status, success=sample % 2 == 0)
            redis.xadd(TRAJECTORIES_RAW, {"body": ScoreRequest(trajectory=trajectory).model_dump_json()})
        settings = {"redis_url": server.url, "lease_s": 1, "concurrency": 8}
        service = ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", settings, tmp_path / "log")

        service.start("/healthz")
        wait_for_scored(redis, 20)
        service.stop(signal.SIGKILL)
        left = redis.xlen(TRAJECTORIES_RAW)
        service.start("/healthz")
        deadline = time.monotonic() + TIMEOUT_S
        while redis.xlen(TRAJECTORIES_RAW):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        exit_code = service.stop()
        pending = num_pending(redis)
        dead = redis.exists(f"{TRAJECTORIES_RAW}:dead")
        scored = scored_samples(redis)

    assert 0 < left < NUM_TRAJECTORIES, "killed in the middle of the work"
    assert exit_code == 0
    assert (pending, dead) == (0, 0)
    times = Counter(item.trajectory.sample for item in scored)
    assert sorted(times) == list(range(NUM_TRAJECTORIES))
    assert sum(times.values()) - len(times) <= 8, "only what was in hand may stand twice"
    for item in scored:
        sample = item.trajectory.sample
        total = None if item.reward is None else item.reward.total
        assert total == (None if sample % 7 == 0 else 1.0 if sample % 2 == 0 else -1.0)
