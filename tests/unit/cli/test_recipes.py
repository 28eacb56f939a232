"""Overrides on the command line, and the recipe that is written from them."""

import json
from pathlib import Path

import pytest
from gymfleet_cli.console import UsageProblem
from gymfleet_cli.main import run
from gymfleet_cli.recipes import load_checked, load_with_overrides, to_toml
from gymfleet_contracts.recipe import RecipeError, load_recipe

MINIMAL = """\
name = "walk"
[env]
name = "maze"
[model.scratch]
[rl]
steps = 3
[rollout.limits]
max_context_tokens = 512
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "walk.toml"
    path.write_text(MINIMAL)
    return path


def test_overrides_are_typed_and_make_tables(recipe: Path) -> None:
    changed = load_with_overrides(
        recipe, ["rl.steps=20", "env.level=tiny", "rl.optimizer.learning_rate=3e-4", "rl.optimizer.betas=[0.5, 0.6]"]
    )

    assert changed.rl is not None
    assert changed.rl.steps == 20
    assert changed.rl.optimizer.learning_rate == 3e-4
    assert changed.rl.optimizer.betas == (0.5, 0.6)
    assert changed.env.level == "tiny"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("eval.num_taskz=20", r"eval\.num_taskz"),
        ("rl.steps=many", r"rl\.steps"),
        ("rl.steps=-1", r"rl\.steps"),
        ("rl.updates_per_step=99", "must not exceed rl.groups_per_step"),
        ("rl.steps", "write key=value"),
        ("=3", "write key=value"),
        ("name.first=x", "name holds a value"),
        ('name=1\nseed="x"', "name"),
    ],
)
def test_wrong_override_names_its_key(override: str, named: str, recipe: Path) -> None:
    with pytest.raises(UsageProblem, match=named):
        load_with_overrides(recipe, [override])


def test_name_that_leaves_the_runs_directory_is_refused(recipe: Path) -> None:
    recipe.write_text(MINIMAL.replace("walk", ".."))

    with pytest.raises(RecipeError, match="cannot name a run directory"):
        load_with_overrides(recipe, [])


def test_written_recipe_loads_to_an_equal_one(recipe: Path, tmp_path: Path) -> None:
    awkward = 'quotes " and \\ and\nnew lines, é, \x7f and 1e-9'
    changed = load_with_overrides(recipe, ["rl.optimizer.eps=1e-9", "rl.max_wall_s=inf"])
    changed = changed.model_copy(update={"description": awkward})
    written = tmp_path / "written.toml"
    written.write_text(to_toml(changed), encoding="utf-8")

    assert load_recipe(written) == changed


@pytest.mark.parametrize("path", sorted(Path("recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipe_survives_being_written(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "written.toml"
    written.write_text(to_toml(load_recipe(path)), encoding="utf-8")

    assert load_recipe(written) == load_recipe(path)


def test_a_recipe_says_how_many_of_what(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe.write_text(MINIMAL + "[scale]\nrollouts = 2\nenv_servers = 3\n")

    assert run(["scale", str(recipe)]) == 0
    assert capsys.readouterr().out == "--scale env-maze=3 --scale env_gateway=1 --scale rollout=2 --scale reward=1\n"
    assert run(["scale", str(recipe), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"env-maze": 3, "env_gateway": 1, "rollout": 2, "reward": 1}


@pytest.mark.parametrize("override", ["rl.stepz=20", "rl.group_size=1", 'rl.algorithm="grop"'])
def test_what_plugins_do_not_take_is_found_before_anything_starts(override: str, recipe: Path) -> None:
    with pytest.raises(RecipeError, match=r"walk\.toml: (rl\.stepz|rl\.group_size|there is no algorithm 'grop')"):
        load_checked(recipe, [override])
    load_checked(recipe, [])
