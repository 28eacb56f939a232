"""Strategies that search, in a real fleet: maze's forks, an embedded vLLM, values by the reward service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_contracts.rollout import Budget, StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory

from tests.fixtures.searches import BY_SCORE
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet
from tests.integration.test_loops import loop_of, stages
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
ONE_SEARCH = """
[[stages]]
kind = "collect"
name = "searched"
strategy = {{ {strategy} }}
rejected = true
num_tasks = 3
samples_per_task = 2
[[stages]]
kind = "preference"
data = "searched"
algorithm = "simpo"
pairs = {{ level = "{level}", min_gap = 0.0001, min_chosen_reward = -99, max_pairs_per_task = 4 }}
optimizer = {{ learning_rate = 1e-4 }}
[[stages]]
kind = "sft"
data = "searched"
epochs = 1
[[stages]]
kind = "process_reward"
data = "searched"
labels = "values"
epochs = 1
lowest_value = -2.0
highest_value = 1.0
"""
"""Of one search: pairs of siblings, what to imitate, and labels of turns."""
EVALUATOR = """
[rollout.evaluator.goal]
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
        ("go_explore", {"explorations": 8}),
        ("plan_and_execute", {"every": 3}),
    ],
)
def test_it_plays_within_its_budget(http: httpx.Client, use: str, options: dict[str, Any]) -> None:
    spec, budget = StrategySpec(use=use, options=options), Budget(model_calls=60, env_steps=50)

    job = finished(http, group(f"search-{use}", strategy=spec, num_samples=2, evaluator=BY_SCORE, budget=budget))

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
    if use in ("best_of_n", "beam", "mcts", "go_explore") and ended:
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


def until(run: TrainerRun, name: str) -> dict[str, int]:
    """Run up to the end of a stage, and return what was counted."""

    def done() -> bool:
        state = run.state()
        return state is not None and name in [stage.name for stage in state.left]

    run.start()
    run.wait_until(done, timeout_s=240)
    run.kill()
    state = run.state()
    assert state is not None, run.tail()
    assert name in [stage.name for stage in state.left], run.tail()
    return state.counts


@pytest.mark.parametrize(
    ("strategy", "level", "chosen"),
    [
        # A policy that was never trained asks for no action, so that a tree of actions is a path: its rollouts branch.
        pytest.param('use = "mcts", simulations = 8', "steps", True, id="turns by what came of them"),
        pytest.param(
            'use = "forks", continuations = 2, max_forks = 2',
            "valued_steps",
            False,
            id="turns by values",
            marks=pytest.mark.long,
        ),
    ],
)
def test_three_things_are_learned_from_one_search(
    http: httpx.Client, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, strategy: str, level: str, chosen: bool
) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=1, sft=ONE_SEARCH.format(strategy=strategy, level=level),
        more=EVALUATOR, settings={"ROLLOUT_URL": str(http.base_url)},
    )  # fmt: skip

    counts = until(run, "process_reward")

    lines = (run.run_dir / "trajectories" / "searched.jsonl").read_text().split("\n")[:-1]
    found = [ScoredTrajectory.model_validate_json(line).trajectory for line in lines]
    kept = [one for one in found if not one.rejected]
    assert {one.selected for one in kept} == {chosen}
    assert len({one.task.task_id for one in kept}) == 3
    assert len(found) > len(kept)
    pairs, (preferred,) = counts["examples.preference"], run.metrics("preference_step")
    assert pairs > 0
    assert preferred["num_trained_sequences"] == 2 * pairs
    assert counts["left_out.sft.rejected"] == len(found) - len(kept)
    (imitated,) = run.metrics("sft_epoch")
    assert imitated["tokens"] == sum(one.num_response_tokens for one in kept)
    assert any(turn.node_value is not None for one in found for turn in one.turns)
    (learned,) = run.metrics("reward_epoch")
    assert learned["num_updates"] > 0
    assert learned["held_out_accuracy"] >= 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "use", "few"), [("expert_iteration", "mcts", {"simulations": 2}), ("go_explore", "go_explore", {})]
)
def test_the_shipped_loop_of_searching_and_imitating(
    http: httpx.Client, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, name: str, use: str, few: dict[str, int]
) -> None:
    loop = loop_of(name)
    (collect, *_) = loop["stages"]
    collect["strategy"] |= few
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=1, sft=stages(loop), more=EVALUATOR,
        settings={"ROLLOUT_URL": str(http.base_url)},
    )  # fmt: skip

    until(run, f"{name}1.sft")

    (path,) = run.run_dir.rglob(f"trajectories/{name}1.filter.jsonl")
    kept = [ScoredTrajectory.model_validate_json(line).trajectory for line in path.read_bytes().splitlines()]
    assert kept
    assert all(one.selected and one.strategy == use for one in kept)
    (imitated,) = run.metrics("sft_epoch")
    assert imitated["stage"] == f"{name}1.sft"
    assert imitated["tokens"] == sum(one.num_response_tokens for one in kept)
