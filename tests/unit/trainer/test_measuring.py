"""What a measurement says of the episodes that were played for it."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from gymfleet_contracts.trajectory import FinishReason, ScoredTrajectory
from gymfleet_kit.intervals import wilson_interval
from gymfleet_trainer.run.measuring import measure
from gymfleet_trainer.run.state import EvalResult, RunState
from gymfleet_trainer.stages.measure import Measure
from gymfleet_trainer.stages.reinforce import Reinforce

from tests.fixtures.scored import RUN_ID, make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, stage_of

TWO = [{"name": "maze", "label": "easy"}, {"name": "maze", "label": "hard"}]
"""Only the group tells which of the two an episode is of."""


def measured(
    episodes: list[ScoredTrajectory],
    kind: type[Measure | Reinforce],
    label: str = "",
    *,
    searched: Mapping[str, int] | None = None,
    **sections: Any,
) -> tuple[EvalResult, list[dict[str, Any]]]:
    """The result, and what was written to the metrics."""
    recipe = make_recipe(**sections)
    stage: Any = stage_of(recipe, kind)
    written: list[dict[str, Any]] = []

    async def played(asked: str) -> Any:
        assert asked == label
        run.state.counts.update(searched or {})
        return SimpleNamespace(counted=episodes, num_failed=3)

    run: Any = SimpleNamespace(
        recipe=recipe,
        stage=stage,
        planner=make_planner(recipe),
        played=played,
        state=RunState(run_id=RUN_ID, recipe_hash="h", step=5, age=9, version=4),
        directory=SimpleNamespace(metric=lambda kind, **fields: written.append({"kind": kind, **fields})),
    )
    result, given = asyncio.run(measure(run, label))
    assert given == episodes
    return result, written


def test_a_measurement_counts_successes_and_gives_their_interval() -> None:
    episodes = [make_scored(f"measure.t{task:06d}", success=task == 0) for task in range(4)]

    result, written = measured(episodes, Measure, stages=[{"kind": "measure", "num_tasks": 4}])

    assert (result.name, result.num_episodes, result.num_successes, result.success) == ("measure", 4, 1, 0.25)
    assert result.interval == pytest.approx(wilson_interval(1, 4))
    assert (result.policy_version, result.failed_episodes, result.environments) == (4, 3, {})
    (line,) = written
    assert (line["kind"], line["name"], line["step"], line["age"], line["success"]) == ("eval", "measure", 5, 9, 0.25)
    assert "failed_episodes" not in line


def test_what_a_task_took_is_a_mean_over_tasks() -> None:
    computed = make_turn(response=(1, 2, 3)).model_copy(update={"num_prefilled_tokens": 20})
    turns = (computed, make_turn(response=(4,)))
    episodes = [make_scored(f"measure.t{task:06d}", turns=turns[: task + 1]) for task in range(2)]

    result, _ = measured(episodes, Measure, stages=[{"kind": "measure", "num_tasks": 2}])

    assert result.spent is not None
    assert result.spent.model_dump() == {
        "env_steps": 1.5,
        "model_calls": 1.5,
        "tokens": 23.5,
        "evaluations": 0.0,
        "forks": 0.0,
    }


def test_what_a_search_took_is_in_its_records() -> None:
    episodes = [make_scored(f"measure.t{task:06d}") for task in range(2)]
    counts = {
        "searched_env_steps": 8,
        "searched_replies": 6,
        "searched_tokens": 100,
        "searched_values": 4,
        "searched_forks": 10,
    }

    result, _ = measured(
        episodes, Measure, stages=[{"kind": "measure", "num_tasks": 2, "strategy": "beam"}], searched=counts
    )

    assert result.spent is not None
    assert result.spent.model_dump() == {
        "env_steps": 4.0,
        "model_calls": 3.0,
        "tokens": 50.0,
        "evaluations": 2.0,
        "forks": 5.0,
    }


def test_one_on_the_way_is_called_by_its_stage_and_step() -> None:
    episodes = [make_scored("reinforce.step_000002.t000000", success=True)]
    rl = {"steps": 4, "measure": {"every_steps": 2, "num_tasks": 1}}

    result, _ = measured(episodes, Reinforce, "step_000002", rl=rl)

    assert (result.name, result.success) == ("reinforce.step_000002", 1.0)


def test_several_episodes_of_a_task_make_no_interval_as_narrow_as_several_tasks() -> None:
    ends = [True, True, True, False, False, False, True, False]
    episodes = [make_scored(f"measure.t{index // 2:06d}", success=end) for index, end in enumerate(ends)]
    stages = [{"kind": "measure", "num_tasks": 4, "samples_per_task": 2}]

    result, _ = measured(episodes, Measure, stages=stages)

    assert (result.num_episodes, result.success) == (8, 0.5)
    assert result.interval == pytest.approx(wilson_interval(3, 6))  # v = 1/24, so that n* = 6
    assert result.pass_hat == (0.5, 0.25)


def test_environments_are_told_apart_by_the_place_of_their_tasks() -> None:
    stages = [{"kind": "measure", "num_tasks": 2}]
    successes = [True, True, False, True]
    episodes = [make_scored(f"measure.t{task:06d}", success=success) for task, success in enumerate(successes)]

    result, _ = measured(episodes, Measure, stages=stages, environments=TWO)

    assert (result.num_episodes, result.success) == (4, 0.75)
    assert list(result.environments) == ["easy", "hard"]
    easy, hard = result.environments.values()
    assert (easy.num_episodes, easy.num_successes, easy.success) == (2, 2, 1.0)
    assert (hard.num_episodes, hard.num_successes, hard.success) == (2, 1, 0.5)
    assert hard.interval == pytest.approx(wilson_interval(1, 2))


def test_replies_and_turns_are_means_over_all_episodes() -> None:
    short, long = make_scored("measure.t000000"), make_scored("measure.t000001", cut=FinishReason.MAX_TURNS)
    turns = long.trajectory.turns * 3
    long = long.model_copy(update={"trajectory": long.trajectory.model_copy(update={"turns": turns, "score": 0.5})})

    result, _ = measured([short, long], Measure, stages=[{"kind": "measure", "num_tasks": 2}])

    assert (result.mean_turns, result.mean_score, result.cut_replies) == (2.0, 0.25, 0.0)


def test_how_the_agent_went_about_its_tasks_is_told_beside() -> None:
    good, solved = make_scored("measure.t000000"), make_scored("measure.t000001", success=True)
    one = good.trajectory.turns[0].model_copy(update={"observation": "here", "action": "go", "action_valid": True})
    lost = one.model_copy(update={"action": "fly", "action_valid": False})
    turns = (one, lost, one, lost)  # the second `go` is in vain; the last mistake is not mended
    good = good.model_copy(update={"trajectory": good.trajectory.model_copy(update={"turns": turns})})
    solved = solved.model_copy(update={"trajectory": solved.trajectory.model_copy(update={"turns": (one, one)})})
    stages = [{"kind": "measure", "num_tasks": 2}]

    result, _ = measured([good, solved], Measure, stages=stages)

    assert (result.mean_turns_solved, result.useful_actions) == (2.0, 2 / 6)
    assert (result.mistakes, result.mended_mistakes) == (2 / 6, 0.5)
    alone, _ = measured([solved], Measure, stages=[{"kind": "measure", "num_tasks": 1}])
    assert (alone.mistakes, alone.mended_mistakes) == (0.0, None)
    unsolved, _ = measured([good], Measure, stages=[{"kind": "measure", "num_tasks": 1}])
    assert unsolved.mean_turns_solved is None


def test_episodes_of_a_task_and_of_its_replacement_count_together_for_pass_hat() -> None:
    episodes = [
        make_scored("measure.t000000", success=True), make_scored("measure.t000000-r1", success=True),
        make_scored("measure.t000001", success=True), make_scored("measure.t000001", success=False),
    ]  # fmt: skip

    result, (line,) = measured(episodes, Measure, stages=[{"kind": "measure", "num_tasks": 2, "samples_per_task": 2}])

    assert result.pass_hat == line["pass_hat"] == (0.75, 0.5)
