"""`gymfleet eval --strategy` with real services: a row for each strategy, within one budget."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.test_cli_fleet import GYMFLEET
from tests.integration.test_suites import RECIPE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_services"), pytest.mark.timeout(400)]


def test_strategies_are_compared_by_what_they_take(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.format(model=tiny_model))

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [GYMFLEET, "eval", str(tmp_path / "recipe.toml"), "--run-dir", str(tmp_path / "run"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "COLUMNS": "200"}
        )

    misspelt = run("--strategy", "independent", "--strategy", "best_of_n,candidate=2")
    unvalued = run("--strategy", "best_of_n,candidates=2")
    unshared = run("--allocate", "model_calls=6")
    compared = run(
        "--strategy", "independent", "--strategy", "best_of_n,candidates=2", "--budget", "model_calls=3",
        "--allocate", "model_calls=6,wave=1", "--set", "rollout.evaluator.goal.enabled=true", "--episodes", "2",
    )  # fmt: skip

    assert misspelt.returncode == unvalued.returncode == 2
    assert "candidate" in misspelt.stderr
    assert "measuring" not in misspelt.stderr
    assert "say how in [rollout.evaluator]" in unvalued.stderr
    assert unshared.returncode == 2
    assert "[rollout.evaluator]" in unshared.stderr
    assert compared.returncode == 0, compared.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in compared.stdout.splitlines() if "│" in line]
    first, second, third = rows
    assert first[0] == "independent"
    assert second[0] == "best_of_n,candidates=2"
    assert 0 < float(first[2]) <= 3
    assert float(first[2]) <= float(second[2]) <= 3, "replies of a task, within its budget"
    assert float(first[4]) > 0
    assert float(first[5]) == 0
    assert 1 <= float(second[5]) <= 2, "values of what ended"
    assert 0 < float(third[2]) <= 3, "both tasks together have six replies"
    assert float(third[5]) >= 1, "each episode is valued"
    assert third[0] == "allocated,model_calls=6,wave=1"
    by = [row[8] for row in rows]
    assert by == ["nothing", "goal", "goal"], "who chooses by the environment's score is told"
