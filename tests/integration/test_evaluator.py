"""Nodes valued by a real reward service: the episode up to a node, scored as the group's evaluator says."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gymfleet_contracts.reward import EvaluatorSpec, RewardSpec, ScoreRequest
from gymfleet_contracts.rollout import EpisodeLimits, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import Status, Trajectory
from gymfleet_rollout.errors import EvaluationFailed
from gymfleet_rollout.evaluation_batches import EvaluationBatches
from gymfleet_rollout.evaluator import Evaluator, RewardService
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.player import Player
from pydantic import SecretStr

from tests.fixtures.rewards import make_spec
from tests.fixtures.searches import Specs
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.strategies import EVALUATES, EVALUATING, Table
from tests.fixtures.trajectories import make_trajectory
from tests.unit.rollout.test_episode import CHAT, LEFT, OPEN, Door, ScriptedPolicy, group

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
    with ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", settings, log) as process:
        yield process


@pytest_asyncio.fixture
async def rewards(service: ServiceProcess) -> AsyncIterator[RewardService]:
    rewards = RewardService(service.url, SecretStr(KEY))
    yield rewards
    await rewards.aclose()


@pytest.fixture
def evaluator(rewards: RewardService) -> EvaluationBatches:
    return EvaluationBatches(rewards)


def request(sample: int, reward: RewardSpec | None = None, **changes: Any) -> ScoreRequest:
    return ScoreRequest(trajectory=make_trajectory(sample=sample, **changes), reward=reward or RewardSpec())


async def test_values_are_total_rewards_in_the_order_of_the_nodes(evaluator: EvaluationBatches) -> None:
    requests = [request(0), request(1, success=False), request(2, make_spec(goal={"success": 3.0}))]

    assert await evaluator.totals(requests, timeout_s=30) == [1.0, -1.0, 3.0]


async def test_what_has_no_value_is_a_failure(service: ServiceProcess, half: str, evaluator: EvaluationBatches) -> None:
    failing = request(1, make_spec(half={"use": half}))
    with pytest.raises(EvaluationFailed, match=r"gave no value: half: .*ended: terminated"):
        await evaluator.totals([request(0), failing], timeout_s=60)
    with pytest.raises(EvaluationFailed, match="gave no value: without a reason"):
        await evaluator.totals([request(0, status=Status.ENV_ERROR)], timeout_s=30)
    with pytest.raises(EvaluationFailed, match=r"answered 422: .*nonsense"):
        await evaluator.totals([request(0, make_spec(nonsense={}))], timeout_s=30)

    stranger, nobody = RewardService(service.url, None), RewardService("http://127.0.0.1:9", None)
    with pytest.raises(EvaluationFailed, match="answered 401"):
        await stranger.scores([request(0)], timeout_s=30)
    with pytest.raises(EvaluationFailed, match=r"at http://127\.0\.0\.1:9 does not answer"):
        await nobody.scores([request(0)], timeout_s=30)
    await stranger.aclose()
    await nobody.aclose()


async def test_a_strategy_goes_on_from_the_best_of_its_nodes(
    tmp_path: Path, half: str, evaluator: EvaluationBatches
) -> None:
    table = Table(tmp_path / "mine.py", EVALUATES, ScriptedPolicy(LEFT, LEFT, OPEN), head=EVALUATING)
    table.evaluate_by(evaluator)
    spec = EvaluatorSpec.model_validate({"half": {"use": half}})

    (trajectory,) = await table.play(evaluator=spec, limits=EpisodeLimits(max_attempts=1))

    assert trajectory.status is Status.COMPLETED, trajectory.error
    (tree,) = table.trees
    assert [node.value for node in tree.nodes] == [0.0, 1.0, 0.5, None], "half of no score, the turns, a note"
    assert tree.spent.evaluations == 2, "two nodes went alike"


class Alone:
    """An evaluator that makes a call of its own for every search, as there was before calls were shared."""

    def __init__(self, rewards: RewardService) -> None:
        self._rewards = rewards

    async def totals(self, requests: Sequence[ScoreRequest], *, timeout_s: float) -> list[float]:
        outcomes = await self._rewards.scores(requests, timeout_s=timeout_s)
        return [one for one in outcomes if isinstance(one, float)]


async def searched(evaluator: Evaluator, num_trees: int) -> list[SearchTree]:
    """Let beams grow at the same time, each of four turns, and return their records by their groups."""
    made: Any = Door(), Specs(), Formats()
    player = Player(ScriptedPolicy(LEFT), CHAT, *made, max_episodes=64, evaluator=evaluator)
    trees: list[SearchTree] = []

    async def deliver(trajectories: list[Trajectory]) -> None:
        assert all(one.status is Status.TRUNCATED and one.error is None for one in trajectories)

    async def deliver_tree(tree: SearchTree) -> None:
        trees.append(tree)

    groups = [
        group(
            group_id=f"g{number}", num_samples=1, strategy=StrategySpec(use="beam", options={"width": 1}),
            limits=EpisodeLimits(max_turns=4, max_attempts=1), evaluator=EvaluatorSpec.model_validate({"length": {}}),
        )
        for number in range(num_trees)
    ]  # fmt: skip
    await asyncio.gather(*(player.play(one, one.wanted, deliver, deliver_tree) for one in groups))
    return sorted(trees, key=lambda tree: tree.group_id)


async def test_trees_that_grow_at_once_share_the_calls_of_the_service(rewards: RewardService) -> None:
    calls: list[str] = []

    async def counted(request: Any) -> None:
        calls.append(request.url.path)

    rewards._http.event_hooks = {"request": [counted]}

    alone = await searched(Alone(rewards), 8)
    num_alone = len(calls)
    shared = await searched(EvaluationBatches(rewards), 8)
    num_shared = len(calls) - num_alone

    assert set(calls) == {"/v1/scores"}
    assert num_alone == 8 * 4, "one for each turn of each tree"
    assert num_shared <= 8, f"{num_shared} calls for four turns of eight trees"
    assert [tree.spent.evaluations for tree in shared] == [tree.spent.evaluations for tree in alone] == [4] * 8
    assert [[node.value for node in tree.nodes] for tree in shared] == [
        [node.value for node in tree.nodes] for tree in alone
    ]
