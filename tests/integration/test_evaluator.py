"""Nodes valued by a real reward service: the episode up to a node, scored as the group's evaluator says."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gymfleet_contracts.reward import RewardSpec, ScoreRequest
from gymfleet_contracts.rollout import EpisodeLimits
from gymfleet_contracts.trajectory import Status
from gymfleet_rollout.errors import EvaluationFailed
from gymfleet_rollout.evaluator import RewardService
from pydantic import SecretStr

from tests.fixtures.rewards import make_spec
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.strategies import EVALUATES, EVALUATING, Table
from tests.fixtures.trajectories import make_trajectory
from tests.unit.rollout.test_episode import LEFT, OPEN, ScriptedPolicy

KEY = "an-api-key-of-some-length"
HALF = '''
from gymfleet_reward.component import Component, ComponentOptions


class Half(Component[ComponentOptions]):
    """Half of the environment's score, and nothing it can do with episodes that ended."""

    def score(self, episode):
        if episode.finish_reason != "stopped":
            raise RuntimeError(f"ended: {episode.finish_reason.value}")
        return 0.5 * episode.score + len(episode.turns)
'''


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("mine") / "half.py"
    path.write_text(HALF)
    return str(path)


@pytest.fixture(scope="module")
def service(redis_url: str, half: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    settings = {"redis_url": redis_url, "api_key": KEY, "plugins": json.dumps([half])}
    log = tmp_path_factory.mktemp("reward") / "log"
    with ServiceProcess("gymfleet_reward.main", "GYMFLEET_REWARD_", settings, log) as process:
        yield process


@pytest_asyncio.fixture
async def evaluator(service: ServiceProcess) -> AsyncIterator[RewardService]:
    evaluator = RewardService(service.url, SecretStr(KEY))
    yield evaluator
    await evaluator.aclose()


def request(sample: int, reward: RewardSpec | None = None, **changes: Any) -> ScoreRequest:
    return ScoreRequest(trajectory=make_trajectory(sample=sample, **changes), reward=reward or RewardSpec())


async def test_values_are_total_rewards_in_the_order_of_the_nodes(evaluator: RewardService) -> None:
    requests = [request(0), request(1, success=False), request(2, make_spec(goal={"success": 3.0}))]

    assert await evaluator.totals(requests, timeout_s=30) == [1.0, -1.0, 3.0]


async def test_what_has_no_value_is_a_failure(service: ServiceProcess, half: str, evaluator: RewardService) -> None:
    failing = request(1, make_spec(half={"use": half}))
    with pytest.raises(EvaluationFailed, match=r"gave no value: half: .*ended: terminated"):
        await evaluator.totals([request(0), failing], timeout_s=60)
    with pytest.raises(EvaluationFailed, match="gave no value: without a reason"):
        await evaluator.totals([request(0, status=Status.ENV_ERROR)], timeout_s=30)
    with pytest.raises(EvaluationFailed, match=r"answered 422: .*nonsense"):
        await evaluator.totals([request(0, make_spec(nonsense={}))], timeout_s=30)

    stranger, nobody = RewardService(service.url, None), RewardService("http://127.0.0.1:9", None)
    with pytest.raises(EvaluationFailed, match="answered 401"):
        await stranger.totals([request(0)], timeout_s=30)
    with pytest.raises(EvaluationFailed, match=r"at http://127\.0\.0\.1:9 does not answer"):
        await nobody.totals([request(0)], timeout_s=30)
    await stranger.aclose()
    await nobody.aclose()


async def test_a_strategy_goes_on_from_the_best_of_its_nodes(
    tmp_path: Path, half: str, evaluator: RewardService
) -> None:
    table = Table(tmp_path / "mine.py", EVALUATES, ScriptedPolicy(LEFT, LEFT, OPEN), head=EVALUATING)
    table.evaluate_by(evaluator)
    spec = make_spec(goal={"enabled": False}, half={"use": half})

    (trajectory,) = await table.play(evaluator=spec, limits=EpisodeLimits(max_attempts=1))

    assert trajectory.status is Status.COMPLETED, trajectory.error
    (tree,) = table.trees
    assert [node.value for node in tree.nodes] == [0.0, 1.0, 0.5, None], "half of no score, the turns, a note"
    assert tree.spent.evaluations == 2, "two nodes went alike"
