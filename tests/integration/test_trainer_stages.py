"""Lists of stages in whole runs: rounds of rejection sampling, mixed environments, a kill in every stage."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory

from tests.fixtures.trainer_runs import WARM_START, TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROUNDS = (
    WARM_START
    + """
[[stages]]
repeat = 2
name = "round"
[[stages.stages]]
kind = "collect"
num_tasks = 4
samples_per_task = 3
[[stages.stages]]
kind = "filter"
data = "collect"
best_of_task = 1
[[stages.stages]]
kind = "sft"
data = ["filter", "demonstrations"]
epochs = 2
optimizer = { learning_rate = 0.01 }
"""
)
NAMES = [
    "demonstrations", "sft", *(f"round{n}.{kind}" for n in (1, 2) for kind in ("collect", "filter", "sft")),
    "before", "reinforce", "after",
]  # fmt: skip


def left(run: TrainerRun) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads((run.run_dir / "stages.json").read_text())}


def episodes(run: TrainerRun, name: str) -> list[ScoredTrajectory]:
    text = (run.run_dir / "trajectories" / f"{name}.jsonl").read_text()
    return [ScoredTrajectory.model_validate_json(line) for line in text.split("\n") if line]


def check_rounds(run: TrainerRun) -> None:
    stages = left(run)
    assert list(stages) == NAMES
    for number in (1, 2):
        collected, best = (episodes(run, f"round{number}.{kind}") for kind in ("collect", "filter"))
        assert len(collected) == stages[f"round{number}.collect"]["num_episodes"] == 12
        assert len(best) == 4
        tasks = [one.trajectory.task.task_id for one in collected]
        assert tasks == sorted(tasks, key=tasks.index), "in the order of the tasks"
        rewards = {task: max(_total(one) for one in collected if one.trajectory.task.task_id == task) for task in tasks}
        assert {one.trajectory.task.task_id: _total(one) for one in best} == rewards
        assert (run.run_dir / stages[f"round{number}.sft"]["model"] / "model.safetensors").is_file()
    epochs = Counter(line["stage"] for line in run.metrics("sft_epoch"))
    assert epochs == {"sft": 3, "round1.sft": 2, "round2.sft": 2}
    versions = {
        number: {one.trajectory.policy.version_min for one in episodes(run, f"round{number}.collect")}
        for number in (1, 2)
    }
    assert max(versions[1]) < min(versions[2]), "the second round is played by what the first has made"


def _total(scored: ScoredTrajectory) -> float:
    assert scored.reward is not None
    return scored.reward.total


def test_rounds_of_rejection_sampling(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=ROUNDS)

    summary = run.finish()

    check_rounds(run)
    assert list(summary["seconds"]["stages"]) == NAMES
    assert summary["tokens_trained"] > 0


def test_killed_in_every_stage_it_ends_as_if_nothing_had_been(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=2, sft=ROUNDS)
    for place in range(len(NAMES)):

        def in_its_stage(place: int = place) -> bool:
            return len(state.left if (state := run.state()) is not None else []) >= place

        run.start()
        run.wait_until(in_its_stage)
        run.kill()

    run.finish()

    check_rounds(run)
    assert [line["step"] for line in run.metrics("rl_step")] == [1, 2]
    assert [line["name"] for line in run.metrics("eval")] == ["before", "after"]


def test_other_runs_can_learn_from_what_a_stage_left(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    first = TrainerRun(maze_fleet, tmp_path / "first", tiny_model, steps=1)
    first.finish()
    stages = f'[[stages]]\nkind = "sft"\ndata = "{first.run_dir}/trajectories/demonstrations.jsonl"\nepochs = 1\n'
    second = TrainerRun(maze_fleet, tmp_path / "second", first.run_dir / "models/sft", steps=1, sft=stages)

    second.finish()

    assert list(left(second)) == ["sft", "before", "reinforce", "after"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: [Errno 2] No such file or directory"),
        ('{"trajectory": 1}\n', "line 1: no episode of ours: trajectory: "),
    ],
)
def test_episodes_that_cannot_be_read_are_one_line(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path, content: str | None, reason: str
) -> None:
    data = tmp_path / "given.jsonl"
    if content is not None:
        data.write_text(content)
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1, sft=f'[[stages]]\nkind = "sft"\ndata = "{data}"\n')

    run.start()

    assert run.wait() == 2
    assert reason in run.tail().splitlines()[-1]


MIXED = """
[[environments]]
name = "maze"
label = "plain"
weight = 3
[[environments.schedule]]
step = 3
max_turns = 2
[[environments]]
name = "maze"
label = "large"
level = "large"
limits = { max_turns = 5 }
reward = { length = { weight = -1.0, min_tokens = 0, max_tokens = 1 } }
"""


def test_mixed_environments_with_a_schedule(maze_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=4, sft="", settings={"RECORDED_GROUPS_PER_STEP": "2"},
        options='measure = { every_steps = 3, num_tasks = 2, level = "tiny" }',
    )  # fmt: skip
    run.recipe.write_text(run.recipe.read_text().replace('[[environments]]\nname = "maze"\n', MIXED))

    summary = run.finish()

    played = episodes(run, "reinforce")
    groups = {one.trajectory.group_id: one.trajectory.task.level for one in played}
    assert Counter(groups.values()) == {"small": 6, "large": 2}, "three to one"
    longest = {level: max(len(one.trajectory.turns) for one in played if one.trajectory.task.level == level)
               for level in ("small", "large")}  # fmt: skip
    assert longest["large"] <= 5
    late = [
        one for one in played if one.trajectory.group_id >= "reinforce.s000003" and one.trajectory.task.level == "small"
    ]
    assert late
    assert all(len(one.trajectory.turns) <= 2 for one in late), "from the third step on"
    assert longest["small"] > 2, "and not before"
    assert summary["environments"] == ["plain", "large"]
    measured = summary["evals"]["after"]
    assert measured["num_episodes"] == 10
    assert {title: one["num_episodes"] for title, one in measured["environments"].items()} == {"plain": 5, "large": 5}
    assert {one.trajectory.task.level for one in episodes(run, "after")} == {"small", "large"}
    on_the_way = summary["evals"]["reinforce.step_000003"]
    assert {title: one["num_episodes"] for title, one in on_the_way["environments"].items()} == {"plain": 2, "large": 2}
    assert summary["seconds"]["measured_on_the_way"] > 0


def test_a_level_that_does_not_exist_is_told_before_anything_is_played(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1)
    table = '[[environments]]\nname = "maze"\n'
    run.recipe.write_text(run.recipe.read_text().replace(table, table + 'schedule = [{ step = 5, level = "hard" }]\n'))

    run.start()

    assert run.wait() == 1
    assert run.tail().splitlines()[-1] == "error: maze has no level hard; it has tiny, small, medium, large"


PAIRS = "pairs = { min_gap = 0.001, min_chosen_reward = -5.0 }"
PREFERRING = f"""
[[stages]]
kind = "collect"
num_tasks = 4
samples_per_task = 3
[[stages]]
kind = "preference"
data = "collect"
epochs = 3
pairs_per_batch = 2
{PAIRS}
optimizer = {{ learning_rate = 0.001 }}
"""


def test_preferences_of_what_was_collected_and_of_groups_as_they_are_played(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(
        maze_fleet, tmp_path, tiny_model, steps=1, sft=PREFERRING, algorithm="dpo", options=PAIRS,
        settings={"SFT_CHECKPOINT_EVERY_S": "0.000001"},
    )  # fmt: skip

    def is_preferring() -> bool:
        state = run.state()
        return state is not None and [one.name for one in state.left] == ["collect"] and state.done >= 2

    run.start()
    run.wait_until(is_preferring)
    run.kill()
    run.finish()

    steps = run.metrics("preference_step")
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1)), "each update once"
    assert len(steps) >= 3
    assert steps[0]["preference_margin"] == 0.0, "the reference is the policy as the stage began"
    assert steps[-1]["preference_margin"] > 0.0
    assert steps[-1]["loss"] < steps[0]["loss"]
    online = run.metrics("rl_step")
    assert [line["step"] for line in online] == [1]
    assert online[0]["preference_margin"] == pytest.approx(0.0, abs=1e-4)
    assert (run.run_dir / left(run)["preference"]["model"] / "model.safetensors").is_file()


def test_a_strategy_that_cannot_play_an_environment_is_told_before_anything_is_played(
    maze_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(maze_fleet, tmp_path, tiny_model, steps=1)
    run.recipe.write_text(run.recipe.read_text() + '\n[rollout.strategy]\nuse = "self_play"\n')

    run.start()

    assert run.wait() != 0
    told = run.tail().splitlines()[-1]
    assert told.startswith("error: stages.reinforce: ")
    assert told.endswith("says: maze is no game: its sessions have one player, and the strategy is for games")
