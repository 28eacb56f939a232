"""From a recipe to the weights: warm starts of a small model against an independent implementation, in float64."""

from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.recipe import Recipe
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.learning.options import SupervisedOptions
from gymfleet_trainer.stages.sft import Supervised
from safetensors.torch import load_file

from tests.fixtures.reference_update import ReferenceSft, episodes_of
from tests.fixtures.scored import make_recipe
from tests.fixtures.trainer_plans import stage_of
from tests.unit.trainer.test_update_wiring import (
    ADAM,
    OPTIMIZER_OPTIONS,
    Outcome,
    assert_agrees,
    batch,
    differs,
    model_dir,
    one_thread,
)

__all__ = ["model_dir", "one_thread"]  # fixtures

SFT: Final[dict[str, Any]] = {"epochs": 3, "tokens_per_batch": 60, "optimizer": ADAM}
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "epochs": {"epochs": 2},
    "tokens_per_batch": {"tokens_per_batch": 25},
    "roles": {"roles": ["agent"]},
    "curriculum": {"curriculum": "length"},
    "curriculum, turns": {"curriculum": "turns"},
    "curriculum, reward": {"curriculum": "reward"},
    **{f"optimizer.{name}": {"optimizer": {**ADAM, **change}} for name, change in OPTIMIZER_OPTIONS.items()},
}


def recipe_of(options: dict[str, Any], **more: Any) -> Recipe:
    return make_recipe(sft={**SFT, **options}, **{"seed": 3, "trainer_dtype": "float64", **more})


def learned(recipe: Recipe, model_dir: Path, directory: Path) -> Outcome:
    """The trainer's."""
    return trained(LocalLearner(recipe, str(model_dir), directory / "reference"), recipe, model_dir, directory)


def trained(learner: LocalLearner, recipe: Recipe, model_dir: Path, directory: Path) -> Outcome:
    options = stage_of(recipe, Supervised).options
    learner.begin("sft", options)
    sequences = learner.sequences([scored for group in batch(model_dir, 0) for scored in group], options.roles)
    metrics = [learner.sft_epoch(sequences, epoch) for epoch in range(options.epochs)]
    for row in metrics:
        row["update_s"] = row.pop("epoch_s")
    (directory / "model").mkdir()
    learner.save_model(directory / "model")
    return Outcome(metrics, load_file(directory / "model" / "model.safetensors"))


def expected(recipe: Recipe, model_dir: Path) -> Outcome:
    """The reference's."""
    options = stage_of(recipe, Supervised).options
    reference = ReferenceSft(recipe, model_dir, episodes_of(batch(model_dir, 0), set(), options.roles))
    metrics = [reference.epoch(epoch) for epoch in range(options.epochs)]
    return Outcome(metrics, {name: value.detach() for name, value in reference.policy.named_parameters()})


@cache
def base(model_dir: Path) -> Outcome:
    return expected(recipe_of({}), model_dir)


def check(recipe: Recipe, model_dir: Path, tmp_path: Path) -> Outcome:
    wanted = expected(recipe, model_dir)
    assert_agrees(learned(recipe, model_dir, tmp_path), wanted, model_dir)
    return wanted


def test_the_warm_start_is_that_of_the_reference(model_dir: Path, tmp_path: Path) -> None:
    outcome = check(recipe_of({}), model_dir, tmp_path)

    assert outcome.metrics[0]["num_updates"] > 1
    assert outcome.metrics[-1]["loss"] < outcome.metrics[0]["loss"]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_changes_the_warm_start_as_it_should(model_dir: Path, tmp_path: Path, option: str) -> None:
    wanted = check(recipe_of(OPTIONS[option]), model_dir, tmp_path)

    assert differs(base(model_dir), wanted, model_dir)


def test_a_stage_can_start_from_an_earlier_model(model_dir: Path, tmp_path: Path) -> None:
    recipe = recipe_of({})
    learner = LocalLearner(recipe, str(model_dir), tmp_path / "reference")
    places = [tmp_path / name for name in ("first", "on", "initial", "named")]
    for place in places:
        place.mkdir()

    first = trained(learner, recipe, model_dir, places[0])
    on = trained(learner, recipe, model_dir, places[1])
    learner.start_from(None)
    initial = trained(learner, recipe, model_dir, places[2])
    learner.start_from(places[0] / "model")
    named = trained(learner, recipe, model_dir, places[3])

    assert all(first.weights[name].equal(weight) for name, weight in initial.weights.items())
    assert all(on.weights[name].allclose(weight, atol=1e-4) for name, weight in named.weights.items()), "as saved"
    assert differs(first, on, model_dir)


def test_the_seed_orders_the_demonstrations(model_dir: Path, tmp_path: Path) -> None:
    wanted = check(recipe_of({}, seed=4), model_dir, tmp_path)

    assert differs(base(model_dir), wanted, model_dir)


def test_the_samplings_temperature_is_not_the_demonstrations(model_dir: Path, tmp_path: Path) -> None:
    recipe = recipe_of({}, rollout={"sampling": {"temperature": 0.7}})

    assert_agrees(learned(recipe, model_dir, tmp_path), base(model_dir), model_dir)


def test_every_option_is_tried() -> None:
    elsewhere = {"optimizer": "a table"}
    tried = {name.partition(",")[0] for name in OPTIONS}

    assert set(SupervisedOptions.model_fields) == {name for name in tried if "." not in name} | set(elsewhere)
