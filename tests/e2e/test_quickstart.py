"""The quickstart's own recipe, made small: the real command, the real services, the real engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.run_directory import RunFiles
from safetensors.torch import load_file

from benchmarks.bench_quickstart import SMOKE
from tests.fixtures.benchmarks import smoke
from tests.fixtures.paths import ROOT


def quickstart(run_dir: Path, *changes: str) -> dict[str, Any]:
    """Run `gymfleet train` on the shipped recipe and return its summary."""
    command = [
        str(Path(sys.executable).with_name("gymfleet")),
        "train",
        str(ROOT / "recipes" / "quickstart.toml"),
        "--run-dir",
        str(run_dir),
    ]
    for change in (*SMOKE["set"], *changes):
        command += ["--set", change]
    done = subprocess.run(command, capture_output=True, text=True, timeout=420, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def weights(directory: Path) -> dict[str, Any]:
    return dict(load_file(directory / "model.safetensors"))


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_the_gain_comes_from_the_gradient(tmp_path: Path) -> None:
    """With the learning rate at 0 the same command ends with the weights that it started with."""
    run = tmp_path / "run"
    summary = quickstart(
        run,
        "stages.sft.optimizer.learning_rate=0",
        "stages.reinforce.optimizer.learning_rate=0",
        "rollout.limits.max_turns=2",
    )

    check_everything_is_written(run)
    before, after = weights(run / "model-init"), weights(run / "model")
    assert before.keys() == after.keys()
    assert all(bool((before[name] == after[name]).all()) for name in before)
    assert summary["success_before"] == summary["success_after"] == 0.0, "an untrained model solves nothing"
    assert summary["policy_versions_published"] >= 2


@pytest.mark.slow
@pytest.mark.usefixtures("forked_services")
@pytest.mark.timeout(480)
def test_the_benchmark_of_the_recipe_runs_small_with_ppo(tmp_path: Path) -> None:
    printed = smoke("quickstart", "--runs", str(tmp_path), "--set", *SMOKE["set"], "stages.reinforce.algorithm=ppo")

    run = tmp_path / "bench-quickstart-0"
    assert "seed 0: held-out success after" in printed
    check_everything_is_written(run)
    stages = RunFiles.open(run).recipe()["stages"]
    assert [stage["algorithm"] for stage in stages if stage["kind"] == "reinforce"] == ["ppo"]
    assert any(bool((weights(run / "model-init")[n] != w).any()) for n, w in weights(run / "model").items())


def check_everything_is_written(run: Path) -> None:
    """What the README names is there."""
    summary = json.loads((run / "summary.json").read_text())
    assert summary["environments"] == ["babyai"]
    assert summary["num_eval_episodes"] == 40
    assert 0 < summary["parity_mean_abs"] <= 0.001
    assert summary["tokens_generated"] > 0
    assert summary["tokens_trained"] > 0
    kinds = {json.loads(line)["kind"] for line in (run / "metrics.jsonl").read_text().splitlines()}
    assert {"sft_epoch", "eval", "rl_step", "publish"} <= kinds
    assert "<svg" in (run / "report.html").read_text()
    for stage in ("demonstrations", "before", "reinforce", "after"):
        assert (run / "trajectories" / f"{stage}.jsonl").stat().st_size > 0
