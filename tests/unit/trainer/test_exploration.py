"""Schedules, novelty bonuses and hints: what they come to in a step, by hand, and after a restart."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.rollout import GroupRequest, Sampling
from gymfleet_contracts.schedule import Schedule, highest, value_at
from gymfleet_contracts.trajectory import ScoredTrajectory
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.novelty import Novelty, NoveltyOptions
from gymfleet_trainer.learning.options import ExplorationOptions
from gymfleet_trainer.model.batching import sequences_from_trajectory
from gymfleet_trainer.model.temperatures import pack_by_temperature
from gymfleet_trainer.run.group_planner import PlannedGroup
from gymfleet_trainer.stages.reinforce import Reinforce
from pydantic import ValidationError

from tests.fixtures.scored import make_recipe, make_scored, make_turn
from tests.fixtures.trainer_plans import make_planner, stage_of, training_plan
from tests.unit.trainer.test_update_wiring import (
    FRESH,
    STALE,
    as_groups,
    batches,
    learned,
    model_dir,  # noqa: F401 - a fixture
    recipe_of,
)


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("linear", [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]),
        ("cosine", [2.0, 1 + (1 + math.sqrt(0.5)) / 2, 1.5, 1 + (1 - math.sqrt(0.5)) / 2, 1.0, 1.0]),
    ],
)
def test_a_schedule_goes_from_its_start_to_its_end(shape: Any, values: list[float]) -> None:
    schedule = Schedule(start=2.0, end=1.0, steps=5, shape=shape)

    assert [value_at(schedule, step) for step in range(1, 7)] == pytest.approx(values)
    assert highest(schedule) == 2.0
    assert (value_at(0.3, 4), highest(0.3)) == (0.3, 0.3)
    assert Schedule(start=2.0, end=1.0, steps=1).at(1) == 1.0


def requests(options: dict[str, Any], **rollout: Any) -> list[GroupRequest]:
    recipe = make_recipe(rl={"steps": 4, "groups_per_step": 2, "exploration": options}, rollout=rollout)
    planner, plan = make_planner(recipe, 50), training_plan(recipe)
    return [planner.train(plan, PlannedGroup(number)) for number in range(8)]


def test_the_temperature_follows_the_step() -> None:
    asked = requests({"temperature": {"start": 1.5, "end": 0.5, "steps": 3}}, sampling={"top_p": 0.9})

    assert [request.sampling.temperature for request in asked] == [1.5, 1.5, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]
    assert {request.sampling.top_p for request in asked} == {0.9}


def test_hints_fade() -> None:
    asked = requests({"hints": {"start": 1.0, "end": 0.0, "steps": 3}}, budget={"env_steps": 7})

    assert [request.hint_probability for request in asked] == [1.0, 1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert {request.budget.env_steps for request in asked} == {7}
    assert {request.hint_probability for request in requests({})} == {0.0}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"temperature": {"start": 1.0, "end": 0.0, "steps": 3}}, "start and end must be at least 0.01"),
        ({"hints": {"start": 1.5, "end": 0.0, "steps": 3}}, "start and end must be in 0 to 1"),
        ({"novelty": {"weight": 0}}, "greater than 0"),
    ],
)
def test_what_is_impossible_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        ExplorationOptions.model_validate(given)


@pytest.mark.parametrize(("sample", "temperature"), [(0, 0.5), (1, 1.0), (2, 1.5), (None, 1.0)])
def test_the_samples_of_a_group_are_spread(sample: int | None, temperature: float) -> None:
    request = requests({})[0].model_copy(update={"num_samples": 3, "sampling": Sampling(spread=0.5)})

    assert request.temperature_of(sample) == temperature
    assert request.sampling.lowest == 0.5


def test_a_micro_batch_has_rows_of_one_temperature() -> None:
    rows = []
    for sample, temperature in enumerate((0.5, None, 2.0, 1.0, 0.5)):
        scored = make_scored(sample=sample)
        trajectory = scored.trajectory.model_copy(update={"temperature": temperature})
        rows += sequences_from_trajectory(scored.model_copy(update={"trajectory": trajectory}))

    packed = pack_by_temperature(rows, 10_000, default=1.0)

    assert [(batch.temperature, sorted(batch.indices)) for batch in packed] == [
        (0.5, [0, 4]), (1.0, [1, 3]), (2.0, [2]),
    ]  # fmt: skip


def walked(sample: int, *observations: str, last: str = "end") -> ScoredTrajectory:
    turns = tuple(make_turn((1,), (2, 3)).model_copy(update={"observation": text}) for text in observations)
    scored = make_scored(sample=sample, turns=turns, total=1.0)
    return scored.model_copy(update={"trajectory": scored.trajectory.model_copy(update={"final_observation": last})})


def bonuses(group: list[ScoredTrajectory]) -> list[tuple[tuple[float, ...], ...]]:
    return [scored.reward.token_rewards for scored in group if scored.reward is not None]


def test_a_bonus_by_the_number_of_episodes_that_came_to_a_state() -> None:
    novelty = Novelty(NoveltyOptions(weight=0.5))
    group = [walked(0, "start", "a", "a", last="b"), walked(1, "start", "a", "start", last="c")]

    ((first, second),), metrics = novelty.rewarded([group])

    half = 0.5 / math.sqrt(2)
    assert bonuses([first]) == [((0.0, half), (0.0, 0.0), (0.0, 1.5))], "a by both, twice in one; b by this one"
    assert bonuses([second]) == [((0.0, half), (0.0, 0.0), (0.0, 1.5))], "where it began is not new"
    assert first.reward is not None
    assert first.reward.total == pytest.approx(1.5 + half)
    assert metrics == {"novelty_mean": pytest.approx(0.5 + half), "novelty_states": 3}
    assert bonuses(group) == [((0.0, 0.0),) * 2 + ((0.0, 1.0),)] * 2, "the episodes' own rewards stay"

    resumed = Novelty(NoveltyOptions(weight=0.5))
    resumed.load_state_dict(novelty.state_dict())
    (((third,),), _), ((same,), _) = resumed.rewarded([[walked(2, "start", last="b")]]), ([walked(2, "start")], 0)
    assert bonuses([third]) == [((0.0, 1.0 + half),)], "b for the second time"
    assert bonuses([same]) == [((0.0, 1.0),)]


def test_states_beyond_the_limit_gain_nothing() -> None:
    novelty = Novelty(NoveltyOptions(weight=0.5, max_states=1))

    ((only,),), metrics = novelty.rewarded([[walked(0, "start", "a", last="b")]])

    assert bonuses([only]) == [((0.0, 0.5), (0.0, 1.0))]
    assert metrics["novelty_states"] == 1


def test_a_bonus_changes_the_update_and_its_counts_are_in_the_checkpoint(
    model_dir: Path,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> None:
    recipe = recipe_of({"exploration": {"novelty": {"weight": 0.5}}})
    plain = learned(recipe_of({}), model_dir, _made(tmp_path / "plain"))

    whole = learned(recipe, model_dir, _made(tmp_path / "whole"))
    resumed = _resumed(recipe, model_dir, _made(tmp_path / "resumed"))

    assert "novelty_mean" not in plain.metrics[0]
    assert whole.metrics[0]["novelty_mean"] > 0
    assert any(not torch.equal(whole.weights[name], plain.weights[name]) for name in plain.weights)
    assert resumed["novelty_states"] == whole.metrics[1]["novelty_states"] >= whole.metrics[0]["novelty_states"]
    assert resumed["loss"] == pytest.approx(whole.metrics[1]["loss"])


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _resumed(recipe: Any, model: Path, directory: Path) -> dict[str, Any]:
    """The second batch by a learner that loads what the first one's saved."""
    options = stage_of(recipe, Reinforce).options
    first, second = (as_groups(recipe, groups) for groups in batches(model))
    staleness = {FRESH: 0, STALE: 2}.get
    before = LocalLearner(recipe, str(model), directory / "reference")
    before.begin("reinforce", options)
    before.update(first, staleness)
    before.save_checkpoint(_made(directory / "checkpoint"))
    after = LocalLearner(recipe, str(model), directory / "reference")
    after.load_checkpoint(directory / "checkpoint")
    after.begin("reinforce", options)
    return after.update(second, staleness)
