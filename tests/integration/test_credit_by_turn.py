"""Credit by turn in a real fleet: values of states by forks of a real environment, and groups by its keys of states."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_contracts.rollout import StrategySpec
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory

from tests.fixtures.searches import BY_SCORE
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet
from tests.integration.test_rollout_service import finished, group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FORKS = """
[rollout.strategy]
use = "forks"
continuations = 2
every = 3
train_continuations = {continuations}
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


def test_states_are_valued_by_forks_of_their_sessions(http: httpx.Client) -> None:
    strategy = StrategySpec(use="forks", options={"continuations": 2, "every": 4})

    job = finished(http, group("values", strategy=strategy, num_samples=2, evaluator=BY_SCORE))

    lines = http.get(f"/v1/jobs/{job.job_id}/trajectories").content.split(b"\n")[:-1]
    trajectories = [Trajectory.model_validate_json(line) for line in lines]
    assert [trajectory.status.trainable for trajectory in trajectories] == [True, True]
    values = [[turn.value for turn in trajectory.turns] for trajectory in trajectories]
    for own in values:
        assert [place for place, value in enumerate(own) if value is not None] == list(range(0, len(own), 4))
        assert all(value.samples == 2 and -1 <= value.mean <= 1 for value in own if value is not None)
    assert values[0][0] == values[1][0], "they begin in one state"
    (line,) = http.get(f"/v1/jobs/{job.job_id}/trees").content.split(b"\n")[:-1]
    tree = SearchTree.model_validate_json(line)
    assert tree.spent.model_calls > sum(len(own) for own in values), "continuations are replies too"
    num_continuations = 2 * (1 + sum(value is not None for own in values for value in own[1:]))
    assert 0 < tree.spent.evaluations <= num_continuations, "those that went alike are valued once"


@pytest.mark.parametrize("continuations", [False, True])
def test_a_policy_learns_from_values_of_states(
    http: httpx.Client, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, continuations: bool
) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=2, sft="", algorithm="monte_carlo",
        more=FORKS.format(continuations=str(continuations).lower()), settings={"ROLLOUT_URL": str(http.base_url)},
    )  # fmt: skip

    summary = run.finish()

    steps = run.metrics("rl_step")
    assert all(step["num_updates"] == 1 and step["num_nonfinite"] == 0 for step in steps)
    assert all((step["episodes"] > 6) == continuations for step in steps)
    trained = sum(step["turns"] for step in steps)
    assert summary["counts"]["searched_env_steps"] <= summary["counts"]["searched_replies"]
    assert continuations or summary["counts"]["searched_replies"] > trained
    assert summary["groups"]["dropped"] == 0
    if continuations:
        assert all(step["num_shared_tokens"] > 0 for step in steps)


def test_turns_are_compared_by_the_environments_keys_of_states(
    http: httpx.Client, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=1, sft="", algorithm="gigpo",
        settings={"ROLLOUT_URL": str(http.base_url)},
    )  # fmt: skip

    run.finish()

    (step,) = run.metrics("rl_step")
    assert step["num_updates"] == 1
    assert 0 < step["compared_turns"] <= 1, "three episodes begin in one state"
    (path,) = run.run_dir.rglob("trajectories/reinforce.jsonl")
    played = [ScoredTrajectory.model_validate_json(line).trajectory for line in path.read_bytes().splitlines()]
    keys: dict[str, set[Any]] = {}
    for trajectory in played:
        assert all(turn.state_key for turn in trajectory.turns)
        keys.setdefault(trajectory.group_id, set()).add(trajectory.turns[0].state_key)
    assert all(len(first) == 1 for first in keys.values())


TREES = """
[rollout.strategy]
use = "tree_sampling"
at = [1, 2]
"""


def test_a_policy_learns_from_trees_of_which_nothing_was_chosen(
    http: httpx.Client, maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=2, sft="", algorithm="tree_grpo", more=TREES,
        settings={"ROLLOUT_URL": str(http.base_url)},
    )  # fmt: skip

    summary = run.finish()

    steps = run.metrics("rl_step")
    assert all(step["num_updates"] == 1 and step["num_nonfinite"] == 0 for step in steps)
    assert all(step["branched_turns"] == 1 for step in steps)
    assert all(step["num_shared_tokens"] > 0 for step in steps)
    (path,) = run.run_dir.rglob("trajectories/reinforce.jsonl")
    played = [ScoredTrajectory.model_validate_json(line).trajectory for line in path.read_bytes().splitlines()]
    assert len(played) == sum(step["episodes"] for step in steps)
    turns = {(one.group_id, turn.node) for one in played for turn in one.turns}
    assert len(turns) < sum(len(one.turns) for one in played), "some are of several episodes"
    assert summary["counts"]["searched_env_steps"] <= len(turns)
