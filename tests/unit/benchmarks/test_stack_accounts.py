"""The books of a run, on hand-made run directories: each fault is seen, and right books show none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_trainer.run.state import EvalResult, Left, RunState

from benchmarks.stack_accounts import Accounts

RECIPE = """
name = "quickstart"

[[environments]]
name = "babyai"

[model]
path = "model"

[[stages]]
kind = "measure"
name = "before"

[[stages]]
kind = "reinforce"
groups_per_step = 2
group_size = 3

[[stages]]
kind = "measure"
name = "after"
"""
LOST = "reinforce.s000002-g01"
GROUPS = ["reinforce.s000001-g00", "reinforce.s000001-g01", "reinforce.s000002-g00", f"{LOST}-r1"]
PRODUCED = {**{group: {0, 1, 2} for group in [*GROUPS, LOST]}, "after.t000000": {0}, "demonstrations.t000000": {0}}
STAGES = (("before", "measure"), ("reinforce", "reinforce"), ("after", "measure"))


def measured(name: str) -> EvalResult:
    return EvalResult(
        name=name, num_episodes=4, num_successes=2, success=0.5, interval=(0.15, 0.85), mean_score=0.5,
        score_interval=(0.15, 0.85), mean_turns=3, policy_version=1, failed_episodes=0, seconds=1.0,
    )  # fmt: skip


def left(num_stages: int) -> list[Left]:
    return [Left(name=name, kind=kind, seconds=1.0) for name, kind in STAGES[:num_stages]]


def run_directory(path: Path, *, steps: tuple[int, ...] = (1, 2), num_updates: int = 2, **changes: Any) -> Path:
    """Two steps of two groups of three, one group replaced because its weights were lost."""
    fields: dict[str, Any] = {
        "run_id": "run", "recipe_hash": "x", "left": left(3), "step": 2, "trained": GROUPS,
        "dropped": {LOST: "stale: the weights of version 3 were lost"},
        "evals": {name: measured(name) for name in ("before", "after")}, "counts": {"resumed": 1},
    }  # fmt: skip
    checkpoint = path / "checkpoints" / "checkpoint-000004"
    checkpoint.mkdir(parents=True)
    (path / "checkpoints" / "latest").write_text("checkpoint-000004\n", encoding="ascii")
    (checkpoint / "state.json").write_text(RunState(**fields | changes).model_dump_json(), encoding="utf-8")
    torch.save({"rl": {"optimizer": {"num_steps": num_updates}}}, checkpoint / "optimizer.pt")
    lines = [{"kind": "rl_step", "time": 1.0, "step": step, "num_updates": 1} for step in steps]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (path / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    return path


def faults(path: Path, produced: dict[str, set[int]] | None = None) -> dict[str, int]:
    """Those that are not zero."""
    found = Accounts.of(path, PRODUCED if produced is None else produced).faults
    return {name: number for name, number in found.items() if number}


def test_right_books(tmp_path: Path) -> None:
    accounts = Accounts.of(run_directory(tmp_path), PRODUCED)

    assert not any(accounts.faults.values()), accounts.faults
    assert (accounts.steps, accounts.trained, accounts.produced, accounts.resumed) == (2, 4, 5, 1)
    assert accounts.dropped == {"stale": 1}
    assert accounts.before["interval"] == (0.15, 0.85)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"left": left(2)}, {"run not finished": 1}, id="killed for good"),
        pytest.param({"trained": [*GROUPS, GROUPS[0]]}, {"groups trained twice": 1}, id="twice"),
        pytest.param(
            {"dropped": {}}, {"groups produced, neither trained nor dropped": 1}, id="produced and forgotten"
        ),
        pytest.param({"open_slots": {f"{LOST}-r2": (3, 2)}}, {"groups still open": 1}, id="open"),
        pytest.param(
            {"steps": (1, 1, 2)},
            {"steps recorded twice or never": 1, "updates of the optimiser, off those recorded": 1},
            id="a step twice",
        ),
        pytest.param({"steps": (1,), "num_updates": 1}, {"steps recorded twice or never": 1}, id="a step never"),
        pytest.param({"num_updates": 3}, {"updates of the optimiser, off those recorded": 1}, id="an update too many"),
        pytest.param(
            {"dropped": {LOST: "failed: env_error: it is broken"}},
            {"groups dropped for another reason than a kill": 1},
            id="dropped because it failed",
        ),
        pytest.param(
            {"step": 3, "steps": (1, 2, 3), "num_updates": 3},
            {"groups trained, off steps times groups a step": 2},
            id="a step of nothing",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_seen(tmp_path: Path, changes: dict[str, Any], expected: dict[str, int]) -> None:
    assert faults(run_directory(tmp_path, **changes)) == expected


def test_a_group_that_is_trained_without_all_its_samples(tmp_path: Path) -> None:
    assert faults(run_directory(tmp_path), PRODUCED | {GROUPS[1]: {0, 2}}) == {"groups trained with samples missing": 1}


def test_a_group_that_nobody_produced(tmp_path: Path) -> None:
    produced = {group: samples for group, samples in PRODUCED.items() if group != GROUPS[2]}

    assert faults(run_directory(tmp_path), produced) == {"groups trained that nobody produced": 1}
