"""A reward model that is trained anew in every round, and the policy reinforced with it: one recipe, one command."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_reward.models.reward_models import RewardModels
from gymfleet_reward.settings import RewardSettings

from tests.fleet import clean_environment, script

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_services"), pytest.mark.timeout(600)]

RECIPE: Final = """
name = "refresh"
[[environments]]
name = "maze"
[model]
path = "{model}"
[inference]
max_model_len = 1024
[rollout.limits]
max_turns = 4
max_response_tokens = 16
max_context_tokens = 1024
[reward.length]  # what a policy that solves nothing still differs in
weight = -0.05
min_tokens = 0
max_tokens = 4
[publish]
probe_prompts = 4
probe_max_tokens = 6
[[stages]]
name = "loop"
repeat = 2
[[stages.stages]]
kind = "collect"
num_tasks = 3
samples_per_task = 4
[[stages.stages]]
kind = "bradley_terry"
data = "collect"
epochs = 2
replay = 0.5
start_from = "previous"
optimizer = {{ learning_rate = 1e-2 }}
[[stages.stages]]
kind = "reinforce"
steps = 1
groups_per_step = 2
group_size = 2
[stages.stages.reward]
goal = {{ enabled = false }}
reward_model = {{ model = "bradley_terry" }}
"""


def scored(run_dir: Path, stage: str) -> list[ScoredTrajectory]:
    lines = (run_dir / "trajectories" / f"{stage}.jsonl").read_text(encoding="utf-8").splitlines()
    return [ScoredTrajectory.model_validate_json(line) for line in lines]


def said_by(model: Path, episodes: list[ScoredTrajectory]) -> tuple[list[Any], str]:
    """What a reward model says of episodes, and how a record names it."""
    table = {"kind": "embedded", "path": str(model), "max_tokens": 1024, "reload": True}
    models = RewardModels(RewardSettings.model_validate({"models": {"bradley_terry": table}}).models)
    said = models.of_episodes("bradley_terry", [one.trajectory for one in episodes], cut_front=False)
    models.close()
    return said.numbers, said.model


def test_each_round_is_reinforced_with_its_own_reward_model(tiny_model: Path, tmp_path: Path) -> None:
    recipe, run_dir = tmp_path / "refresh.toml", tmp_path / "run"
    recipe.write_text(RECIPE.format(model=tiny_model), encoding="utf-8")

    done = subprocess.run(
        [script("gymfleet"), "train", str(recipe), "--run-dir", str(run_dir)],
        env=clean_environment(), capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    recorded = set()
    for number in (1, 2):
        collected = scored(run_dir, f"loop{number}.collect")
        assert {tuple(one.reward.scorers) for one in collected if one.reward} == {("goal", "length")}
        episodes = scored(run_dir, f"loop{number}.reinforce")
        numbers, name = said_by(run_dir / "models" / f"loop{number}.bradley_terry", episodes)
        assert name.startswith(f"bradley_terry:loop{number}.bradley_terry@")
        assert episodes
        for episode, expected in zip(episodes, numbers, strict=True):
            assert episode.reward is not None
            assert episode.reward.scorers == {"reward_model": f"1 model={name}"}
            assert episode.reward.total == pytest.approx(expected, abs=1e-4)
        recorded.add(name.partition("@")[2])
    assert len(recorded) == 2, "the weights of two rounds are told apart"
    assert (run_dir / "reward-models" / "bradley_terry").resolve() == run_dir / "models" / "loop2.bradley_terry"
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["counts"]["replayed.loop2.bradley_terry"] > 0
    assert summary["counts"]["replayed.loop1.bradley_terry"] == 0
    assert summary["episodes_without_reward"] == 0
