"""The benchmark of credit by turn: every method is a recipe."""

import pytest
from gymfleet_cli.recipes import load_with_overrides

from benchmarks.bench_credit import METHODS
from tests.fixtures.paths import ROOT


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_recipe(name: str) -> None:
    recipe = load_with_overrides(ROOT / "recipes" / "quickstart.toml", list(METHODS[name]))

    (stage,) = (stage for stage in recipe.plan() if stage.kind == "reinforce")
    assert stage.options["algorithm"] == name
    assert recipe.environments[0].name == "maze"
    if recipe.rollout.evaluator is not None:
        assert recipe.rollout.evaluator.components == recipe.reward.components, "values are in the units of rewards"
