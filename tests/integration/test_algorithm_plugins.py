"""Algorithms of somebody's own in whole runs: those of the guide, and one that fails."""

import json
import math
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

FAILS = """
from gymfleet_trainer.algorithms.rloo import Rloo as Base


class Fails(Base):
    def after_batch(self, batch, models, reported):
        if batch == 1:
            raise RuntimeError("two batches\\nare enough")
"""


DROPS = """
from gymfleet_trainer.algorithms.rloo import Rloo as Base
from gymfleet_trainer.learning.algorithm import Verdict


class Drops(Base):
    def select(self, group):
        name = group[0].trajectory.group_id
        return Verdict.DROP if "s000002" in name or name.endswith("g01") else Verdict.KEEP
"""


def of_the_guide(title: str) -> str:
    """The Python block with this docstring."""
    page = (ROOT / "docs/adding-an-algorithm.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if title in block]
    assert len(block.splitlines()) < 60
    return str(block)


@pytest.mark.parametrize(
    ("title", "options"),
    [
        ("Returns above a margin.", "margin = 0.25\nclip_low = 0.1"),
        ("Direct preference optimisation within groups.", "beta = 0.2"),
        ("Skip tasks that are nearly solved.", "solved_share = 0.5\ndynamic_sampling = true"),
    ],
)
def test_an_algorithm_of_the_guide_trains(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, title: str, options: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(of_the_guide(title))
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2, sft="", algorithm=str(path), options=options)

    run.finish()

    steps = [line for line in run.metrics("rl_step") if line["num_updates"]]
    assert steps, "at least one group in two steps has episodes of different worth"
    assert all(math.isfinite(line["loss"]) and line["num_nonfinite"] == 0 for line in steps)
    if title.startswith("Nothing"):
        assert run.metrics("rl_step")[0].keys() >= {"groups_redrawn", "groups_not_redrawn", "groups_unselected"}
    if title.startswith("Direct"):
        assert steps[0]["margin"] == pytest.approx(0.0, abs=1e-4), "the policy is the reference"
        assert all(line["num_sequences"] in (2, 4) for line in steps), "two of each group"
    before, after = (load_file(place / "model.safetensors") for place in (tiny_model, run.run_dir / "model"))
    assert any((before[name] != after[name]).any() for name in before)


def test_one_that_fails_ends_the_run_and_one_that_changed_does_not_go_on(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "fails.py"
    path.write_text(FAILS)
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=3, sft="", algorithm=str(path))

    run.start()

    assert run.wait() == 8
    last = run.tail().splitlines()[-1]
    assert last == (
        "error: the algorithm Fails failed: RuntimeError: two batches are enough; its traceback is in the log"
    )
    state = run.state()
    assert state is not None
    assert state.step == 1, "and what was trained is there to go on from"
    path.write_text(FAILS.replace("batch == 1", "batch == 7"))
    run.start()
    assert run.wait() == 2
    assert f"{path} changed since the run in" in run.tail(400)
    path.write_text(FAILS)
    run.start()
    assert run.wait() == 8, "put back, it goes on, and fails again"
    assert json.loads((run.run_dir / "plugins.json").read_text()).keys() == {str(path)}


def test_what_it_drops_is_not_trained_on_and_a_step_may_go_without_an_update(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "drops.py"
    path.write_text(DROPS)
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=3, sft="", algorithm=str(path), learning_rate=3e-3, schedule="linear",
    )  # fmt: skip

    summary = run.finish()

    state = run.state()
    assert state is not None
    assert state.trained == ["reinforce.s000001-g00", "reinforce.s000003-g00"]
    dropped = {"reinforce.s000001-g01", "reinforce.s000002-g00", "reinforce.s000002-g01", "reinforce.s000003-g01"}
    assert state.dropped == dict.fromkeys(dropped, f"unselected: {path} dropped it")
    assert {name: summary["groups"][name] for name in ("trained", "dropped", "unselected")} == {
        "trained": 2, "dropped": 4, "unselected": 4,
    }  # fmt: skip
    assert [(line["step"], line["groups_unselected"]) for line in run.metrics("rl_step")] == [(1, 1), (3, 1)]
    assert [(line["step"], line["groups_unselected"]) for line in run.metrics("step_skipped")] == [(2, 2)]
    rates = {line["step"]: line["learning_rate"] for line in run.metrics("rl_step") if line["num_updates"]}
    assert rates, "at least one of two groups has episodes of different worth"
    told = "the schedule went on in the step between"
    assert rates == pytest.approx({step: {1: 3e-3, 3: 1e-3}[step] for step in rates}), told
    assert summary["steps"] == 3
    assert summary["counts"]["steps_skipped"] == 1
    assert summary["policy_versions_published"] == 3, "the first, and one after each update"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1", "must say ALGORITHM = <its Algorithm subclass>"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_one_that_cannot_be_used_is_a_line_before_anything_is_written(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, source: str, reason: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(source)
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, algorithm=str(path))

    run.start()

    assert run.wait() == 2
    assert reason in run.tail().splitlines()[-1]
    assert not (run.run_dir / "run.json").exists()
