"""Every shipped recipe loads."""

from pathlib import Path

import pytest
from gymfleet_contracts.recipe import load_recipe

from tests.fixtures.paths import ROOT

RECIPES = sorted((ROOT / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_loads_and_is_named_after_its_file(path: Path) -> None:
    assert load_recipe(path).name == path.stem


def test_there_are_recipes() -> None:
    assert "quickstart" in {path.stem for path in RECIPES}
