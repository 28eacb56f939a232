"""What bench_expert_iteration plays, how its level was chosen, and what it reads from its runs."""

import json
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from gymfleet_trainer.run.plan import stages_of

from benchmarks.bench_expert_iteration import Run, rows, run_of, sampled
from benchmarks.hard_level import (
    CANDIDATES,
    CHOSEN,
    MEASURED,
    METHODS,
    SHOWN,
    Sampled,
    method,
    warm_start,
)
from benchmarks.search_page import learned_section
from tests.fixtures.scored import make_scored


def arguments(**changes: Any) -> Namespace:
    given = {
        "level": CHOSEN, "env_steps": 6000, "eval_tasks": 7, "choice_tasks": 5, "choice_samples": 64, "tune": False,
        **changes,
    }  # fmt: skip
    return Namespace(**given)


@pytest.mark.parametrize("name", METHODS)
def test_methods_take_as_many_steps(name: str) -> None:
    recipe = method(name, Path("m"), arguments())

    (environment,) = recipe.environments
    assert (environment.level, environment.eval_split, recipe.model.path) == (CHOSEN, "test", "m")
    measured = {stage.name: stage.options["num_tasks"] for stage in recipe.plan() if stage.kind == "measure"}
    assert measured == {"before": 7, "after": 7}
    played = [stage.options for stage in recipe.plan() if stage.kind in ("collect", "reinforce")]
    assert sum(one["max_env_steps"] for one in played) == 6000
    collected = [one for one in played if "num_tasks" in one]
    assert all(one["num_tasks"] * one.get("samples_per_task", 1) >= one["max_env_steps"] for one in collected), (
        "steps run out first"
    )
    assert stages_of(recipe), "a run of it can begin"


def test_settings_are_tuned_on_the_validation_split() -> None:
    assert method("grpo", Path("m"), arguments(tune=True)).environments[0].eval_split == "validation"


def test_the_level_is_the_first_in_the_range() -> None:
    recipe = warm_start(arguments())

    assert (recipe.environments[0].level, recipe.environments[0].eval_split) == (SHOWN, "validation")
    assert [stage.kind for stage in recipe.plan()] == ["collect", "sft", "measure", "measure"]
    played = [(one.name, one.options["level"], one.options["samples_per_task"]) for one in recipe.plan()[2:]]
    assert played == [(level, level, 64) for level in CANDIDATES]
    within = [level for level in CANDIDATES if 1 <= round(100 * MEASURED[level].one) <= 5]
    assert within[0] == CHOSEN


def test_what_is_sampled_counts_episodes_and_tasks(tmp_path: Path) -> None:
    """Two tasks of four episodes, of which one episode is solved."""
    episodes = [make_scored(f"x.t{task}", n, success=(task, n) == (1, 2)) for task in (0, 1) for n in range(4)]
    for one in episodes:
        task = one.trajectory.task.model_copy(update={"task_id": one.trajectory.group_id})
        trajectory = one.trajectory.model_copy(update={"task": task})
        with (tmp_path / "x.jsonl").open("a", encoding="utf-8") as file:
            file.write(one.model_copy(update={"trajectory": trajectory}).model_dump_json() + "\n")

    assert sampled(tmp_path / "x.jsonl") == Sampled(num_tasks=2, samples=4, one=1 / 8, any=1 / 2)


def test_steps_are_those_of_every_stage_that_plays(tmp_path: Path) -> None:
    after = {"success": 0.25, "interval": [0.1, 0.5], "num_episodes": 20}
    counts = {"env_steps.a": 10, "env_steps.b": 20, "episodes_collected": 5}
    summary = {
        "evals": {"before": {"success": 0.05}, "after": after},
        "counts": counts,
        "tokens_trained": 9,
        "seconds": {"total": 1.23},
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")

    assert run_of("expert_iteration", 1, tmp_path) == Run("expert_iteration", 1, 0.05, 0.25, (0.1, 0.5), 20, 30, 9, 1.2)


FOUND = [
    Run("grpo", 0, 0.03, 0.1, (0.07, 0.15), 200, 6000, 100, 1.0),
    Run("dapo", 0, 0.03, 0.3, (0.2, 0.4), 200, 6000, 100, 1.0),
    Run("expert_iteration", 0, 0.02, 0.3, (0.25, 0.36), 200, 5000, 100, 1.0),
    Run("expert_iteration", 1, 0.04, 0.4, (0.33, 0.46), 200, 5500, 100, 1.0),
]


def test_intervals_are_wide_enough_for_every_seed(tmp_path: Path) -> None:
    found = {row.name: row.value for row in rows(FOUND)}
    assert found["expert_iteration: success, mean of 2 seeds"] == 0.35
    assert found["expert_iteration: lowest lower end of the intervals"] == 0.25
    assert found["expert_iteration: highest upper end of the intervals"] == 0.46

    assert "Nothing is published yet" in learned_section(tmp_path)
    for runs, told in (
        (FOUND, "above `grpo`"),
        ([replace(FOUND[2], interval=(0, 0.05)), FOUND[0]], "below `grpo`"),
    ):
        document = {"hardware": "h", "commit": "c", "command": "x", "runs": [asdict(run) for run in runs]}
        (tmp_path / "expert_iteration.json").write_text(json.dumps(document), encoding="utf-8")
        assert told in learned_section(tmp_path)
    (tmp_path / "expert_iteration.json").write_text(
        json.dumps({**document, "runs": [asdict(run) for run in FOUND]}), encoding="utf-8"
    )
    section = learned_section(tmp_path)
    assert "- `expert_iteration` is not told apart from `dapo`" in section
    assert "| `expert_iteration` | 3.0 % | 35.0 % | 25.0 % to 46.0 % | 30.0 %, 40.0 % | 5,250 | 100 | 1 |" in section
