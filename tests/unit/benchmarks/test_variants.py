"""The benchmark of variants: every variant is a recipe, and success is read at equal steps."""

import json
from pathlib import Path

import pytest
from gymfleet_cli.recipes import load_checked
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.plugins import algorithm_of

from benchmarks.bench_variants import FAMILIES, Measured, curve, recipe_of

pytestmark = pytest.mark.usefixtures("plugins_are_known")


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, named in FAMILIES.items() for name in named])
def test_a_variant_is_a_recipe(family: str, name: str, tmp_path: Path) -> None:
    changes = FAMILIES[family][name]

    recipe = load_checked(recipe_of(family, tmp_path), changes)

    assert recipe.plan()[-1].kind == "measure"
    if family == "formats":
        assert recipe.rollout.format.use == name
    (stage,) = (stage for stage in recipe.plan() if stage.kind == "reinforce")
    algorithms = {"credit": name, "preferences": "dpo"}
    assert stage.options["algorithm"] == algorithms.get(family, "grpo")
    decays = family not in ("credit", "preferences")
    assert stage.options["optimizer"].get("schedule", "constant") == ("linear" if decays else "constant")
    if recipe.rollout.evaluator is not None:
        assert recipe.rollout.evaluator.components == recipe.reward.components, "values are in the units of rewards"


def test_variants_of_credit_share_the_loss(tmp_path: Path) -> None:
    losses = set()
    for changes in FAMILIES["credit"].values():
        recipe = load_checked(recipe_of("credit", tmp_path), changes)
        (stage,) = (stage for stage in recipe.plan() if stage.kind == "reinforce")
        options = algorithm_of(ReinforceOptions.model_validate(stage.options)).options
        losses.add((options.aggregation, options.clip_low, options.clip_high))

    assert losses == {("token_mean", 0.2, 0.2)}


def test_a_measurement_stands_at_the_environment_steps_before_it() -> None:
    lines = [
        {"kind": "eval", "success": 0.1}, {"kind": "rl_step", "env_steps": 30}, {"kind": "published"},
        {"kind": "step_skipped", "env_steps": 50}, {"kind": "eval", "success": 0.4},
        {"kind": "rl_step", "env_steps": 90}, {"kind": "eval", "success": 0.6},
    ]  # fmt: skip

    measured = curve([json.dumps(line) for line in lines])

    assert measured == [Measured(0, 0.1), Measured(50, 0.4), Measured(90, 0.6)]
