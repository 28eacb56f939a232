"""The recipe on rows of a data set, made small: two kinds of rows, each scored by the scorer of its data source."""

import json
from pathlib import Path

import pytest

from benchmarks.bench_quickstart import SMOKE
from tests.fixtures.benchmarks import smoke


@pytest.mark.slow
@pytest.mark.usefixtures("forked_services")
@pytest.mark.timeout(480)
def test_the_recipe_on_rows_runs_small(tmp_path: Path) -> None:
    printed = smoke("quickstart", "--recipe", "dataset", "--runs", str(tmp_path), "--set", *SMOKE["set"])

    run = tmp_path / "bench-dataset-0"
    summary = json.loads((run / "summary.json").read_text())
    demonstrations = [
        json.loads(line) for line in (run / "trajectories" / "demonstrations.jsonl").read_text().splitlines()
    ]
    assert "seed 0: held-out success after" in printed
    assert summary["environments"] == ["arithmetic", "countdown"]
    assert {name: part["num_episodes"] for name, part in summary["evals"]["after"]["environments"].items()} == {
        "arithmetic": 40, "countdown": 40,
    }  # fmt: skip
    assert summary["steps"] == 2
    assert len(demonstrations) == 24
    assert '"ground_truth"' not in json.dumps(demonstrations), "no record holds a right answer"
