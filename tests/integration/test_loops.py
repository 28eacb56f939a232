"""Loops of self-improvement: the stages of the shipped recipes at smoke size, and a loop that keeps nothing."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_cli.recipes import to_toml
from gymfleet_contracts.recipe import Recipe, load_recipe
from gymfleet_contracts.trajectory import ScoredTrajectory
from safetensors.torch import load_file

from tests.fixtures.paths import ROOT
from tests.fixtures.trainer_runs import WARM_START, TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LOOPS: Final = ("rejection_sampling", "raft", "rest_em", "agent_evol", "best_to_sft")
SMALL: Final[dict[str, dict[str, Any]]] = {
    "collect": {"num_tasks": 2, "samples_per_task": 3},
    # A model that was never trained solves nothing: what it did is kept for being done.
    "filter": {"success": None, "above_reward": None, "min_reward": -9.0},
    "sft": {"epochs": 1},
}


def loop_of(name: str) -> dict[str, Any]:
    """The loop of a shipped recipe, of one round on two tasks; AgentEvol has two."""
    document = load_recipe(ROOT / "recipes" / "methods" / f"{name}.toml").model_dump(mode="json", exclude_unset=True)
    (loop,) = (stage for stage in document["stages"] if "repeat" in stage)
    loop["repeat"] = 2 if name == "agent_evol" else 1
    for stage in loop["stages"]:
        stage |= {key: value for key, value in SMALL[stage["kind"]].items() if value is not None}
        for key in [key for key, value in SMALL[stage["kind"]].items() if value is None]:
            stage.pop(key, None)
    return dict(loop)


def stages(*tables: dict[str, Any]) -> str:
    """The tables as TOML."""
    document = {"name": "x", "environments": [{"name": "maze"}], "model": {"path": "x"}, "stages": list(tables)}
    text = to_toml(Recipe.model_validate(document))
    return text[text.index("[[stages]]") :]


def left(run: TrainerRun) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads((run.run_dir / "stages.json").read_text())}


def weights(path: Path) -> dict[str, Any]:
    return dict(load_file(path / "model.safetensors"))


def test_the_shipped_loops(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    demonstrations = WARM_START.partition('\n[[stages]]\nkind = "sft"')[0] + "\n"
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=1, sft=demonstrations + stages(*(loop_of(name) for name in LOOPS))
    )

    summary = run.finish()

    there = left(run)
    rounds = [f"{name}{number}" for name in LOOPS for number in (1, 2) if f"{name}{number}.sft" in there]
    assert rounds == ["rejection_sampling1", "raft1", "rest_em1", "agent_evol1", "agent_evol2", "best_to_sft1"]
    for one in rounds:
        kept = [
            ScoredTrajectory.model_validate_json(line)
            for line in (run.run_dir / "trajectories" / f"{one}.filter.jsonl").read_text().split("\n")
            if line
        ]
        tasks = [scored.trajectory.task.task_id for scored in kept]
        assert kept, one
        assert there[f"{one}.collect"]["num_episodes"] == 6
        played = [
            ScoredTrajectory.model_validate_json(line).trajectory
            for line in (run.run_dir / "trajectories" / f"{one}.collect.jsonl").read_text().splitlines()
        ]
        taken = sum(turn.action is not None for trajectory in played for turn in trajectory.turns)
        assert summary["counts"][f"env_steps.{one}.collect"] == taken
        if one in ("raft1", "best_to_sft1"):
            assert len(tasks) == len(set(tasks)) == 2, "the best of each task"
        if one in ("rejection_sampling1", "rest_em1"):
            actions = [
                [turn.text if turn.action is None else turn.action for turn in scored.trajectory.turns]
                for scored in kept
            ]
            done = list(zip(tasks, actions, strict=True))
            assert all(done.count(each) == 1 for each in done), "what was done twice is imitated once"
    trained = {line["stage"]: line["tokens"] for line in run.metrics("sft_epoch")}
    assert trained["agent_evol1.sft"] > trained["raft1.sft"], "the demonstrations are among it"
    # ReST-EM trains the first model anew: what the stages before it did to the policy is gone.
    models = run.run_dir / "models"
    before, anew = weights(models / "raft1.sft"), weights(models / "rest_em1.sft")
    first = weights(tiny_model)
    assert distance(first, anew) < distance(before, anew)


def distance(first: dict[str, Any], second: dict[str, Any]) -> float:
    return sum(float((first[name].float() - second[name].float()).abs().sum()) for name in first)


NOTHING: Final = """
[[stages]]
repeat = 2
name = "round"
[[stages.stages]]
kind = "collect"
num_tasks = 2
samples_per_task = 2
[[stages.stages]]
kind = "filter"
data = "collect"
min_reward = 99.0
{filter}
[[stages.stages]]
kind = "sft"
data = "filter"
epochs = 1
{sft}
"""


def test_a_loop_whose_filter_keeps_nothing_goes_on_as_the_recipe_says(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    on = 'if_nothing = "go_on"'
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=NOTHING.format(filter=on, sft=on))
    run.start()
    run.wait_until(lambda: (state := run.state()) is not None and len(state.left) >= 2)
    run.kill()

    summary = run.finish()

    stopped = [f"round{number}.{kind}" for number in (1, 2) for kind in ("filter", "sft")]
    assert {name: count for name, count in summary["counts"].items() if name.startswith("nothing_left.")} == {
        f"nothing_left.{name}": 1 for name in stopped
    }
    assert [line["stage"] for line in run.metrics("nothing_left")] == stopped
    assert run.metrics("nothing_left")[0]["reason"] == (
        "stages.round.stages.filter: none of 4 records of round1.collect is kept; loosen the filter, or collect more"
    )
    assert run.metrics("sft_epoch") == []
    assert summary["groups"]["trained"] == 2, "and the stages behind it are carried out"


def test_a_loop_whose_filter_keeps_nothing_ends_with_a_line_each_time(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=NOTHING.format(filter="", sft=""))
    for _ in range(2):
        run.start()

        assert run.wait() == 9
        assert run.tail().splitlines()[-1] == (
            "error: stages.round.stages.filter: none of 4 records of round1.collect is kept; loosen the filter, or "
            "collect more"
        )
    state = run.state()
    assert state is not None
    assert [one.name for one in state.left] == ["round1.collect"], "which is not played again"
