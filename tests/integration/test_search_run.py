"""Strategies that search, in a real fleet: maze's forks, an embedded vLLM, values by the reward service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_contracts.reward import RewardSpec
from gymfleet_contracts.rollout import Budget, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory

from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet
from tests.integration.test_rollout_service import finished, group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SEARCHED = """
[[stages]]
kind = "collect"
name = "searched"
strategy = { use = "best_of_n", candidates = 3 }
num_tasks = 4
[[stages]]
kind = "sft"
data = "searched"
epochs = 1
"""
EVALUATOR = """
[rollout.evaluator.length]
weight = -0.05
min_tokens = 0
max_tokens = 4
"""


@pytest.fixture(scope="module")
def http(maze_fleet: Fleet) -> Iterator[httpx.Client]:
    """A rollout service that may ask the fleet's reward service; the fleet's own rests meanwhile."""
    with maze_fleet.other_rollout(REWARD_URL=maze_fleet.reward.url) as client:
        yield client


@pytest.mark.parametrize(
    ("use", "options"),
    [
        ("best_of_n", {"candidates": 3}),
        ("self_consistency", {"candidates": 3}),
        ("reflexion", {"tries": 2}),
        ("beam", {"width": 2, "candidates": 2}),
        ("tree_of_thoughts", {"children": 2, "samples": 1, "width": 1}),
        ("graph_of_thoughts", {}),
        ("dfsdt", {}),
        ("mcts", {"simulations": 6}),
        ("plan_and_execute", {"every": 3}),
    ],
)
def test_it_plays_within_its_budget(http: httpx.Client, use: str, options: dict[str, Any]) -> None:
    spec, budget = StrategySpec(use=use, options=options), Budget(model_calls=60, env_steps=50)

    job = finished(http, group(f"search-{use}", strategy=spec, num_samples=2, evaluator=RewardSpec(), budget=budget))

    lines = http.get(f"/v1/jobs/{job.job_id}/trajectories").content.split(b"\n")[:-1]
    trajectories = [Trajectory.model_validate_json(line) for line in lines]
    assert trajectories
    assert all(one.status.trainable and one.selected == (use != "plan_and_execute") for one in trajectories)
    trees = [SearchTree.model_validate_json(line) for line in http.get(f"/v1/jobs/{job.job_id}/trees").iter_lines()]
    if use in ("plan_and_execute", "graph_of_thoughts"):
        assert not trees, "each sample by itself"
        return
    (tree,) = trees
    assert tree.spent.model_calls <= 60
    assert tree.spent.env_steps <= 50
    ended = [node.value for node in tree.nodes if node.ended is not None and node.value is not None]
    handed_in = [node for node in tree.nodes if node.samples]
    assert sum(len(node.samples) for node in handed_in) == len(trajectories)
    if use in ("best_of_n", "beam", "mcts") and ended:
        assert max(ended) in [node.value for node in handed_in]


def test_what_was_chosen_is_imitated(http: httpx.Client, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=1, sft=SEARCHED, more=EVALUATOR,
        settings={"ROLLOUT_URL": str(http.base_url)},
    )  # fmt: skip

    summary = run.finish()

    lines = (run.run_dir / "trajectories" / "searched.jsonl").read_text().split("\n")[:-1]
    chosen = [ScoredTrajectory.model_validate_json(line).trajectory for line in lines]
    assert [(one.strategy, one.selected, one.group_size) for one in chosen] == [("best_of_n", True, 1)] * 4
    assert summary["counts"]["searched_replies"] > sum(len(one.turns) for one in chosen)
    assert run.metrics("sft_epoch")[0]["stage"] == "sft"
