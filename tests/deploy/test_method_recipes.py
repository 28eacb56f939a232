"""The recipes by which methods are compared: complete, alike but for the method, and one for every algorithm."""

from typing import Any, Final

import pytest
from gymfleet_cli.recipes import to_toml
from gymfleet_contracts.recipe import Recipe, load_recipe
from gymfleet_kit.plugins import included
from gymfleet_trainer.run.plan import stages_of

from tests.fixtures.paths import ROOT

METHODS: Final = {path.stem: path for path in sorted((ROOT / "recipes" / "methods").glob("*.toml"))}
ALGORITHMS: Final = set(included("gymfleet_trainer.algorithms"))
LOOPS: Final = ("rejection_sampling", "raft", "rest_em", "agent_evol", "best_to_sft", "reward_refresh")
METHOD: Final = ("name", "description", "model", "stages", "rollout")
"""What recipes differ in: of `rollout` the strategy alone."""


def algorithms_of(recipe: Recipe) -> set[str]:
    return {str(stage.options["algorithm"]) for stage in recipe.plan() if "algorithm" in stage.options}


@pytest.mark.parametrize("name", METHODS)
def test_a_recipe_is_named_after_its_file_and_survives_being_written(name: str, tmp_path: Any) -> None:
    recipe = load_recipe(METHODS[name])
    written = tmp_path / "written.toml"
    written.write_text(to_toml(recipe), encoding="utf-8")

    assert recipe.name == name
    assert load_recipe(written) == recipe


@pytest.mark.parametrize(
    "name", [name for name, path in METHODS.items() if algorithms_of(load_recipe(path)) <= ALGORITHMS]
)
def test_its_stages_and_its_algorithm_take_their_options(name: str) -> None:
    stages_of(load_recipe(METHODS[name]))


def test_every_algorithm_has_a_recipe() -> None:
    compared = {name for path in METHODS.values() for name in algorithms_of(load_recipe(path))}

    assert ALGORITHMS - compared == set()


def test_they_differ_in_the_method_alone() -> None:
    """They begin with one model, play the same tasks under the same limits, and are measured on the same ones."""
    recipes = [load_recipe(path) for path in METHODS.values()]
    rest = [recipe.model_dump(exclude=set(METHOD)) | {"limits": recipe.rollout.limits} for recipe in recipes]
    assert all(one == rest[0] for one in rest)

    for recipe in recipes:
        if recipe.name == "warm_start":
            continue
        assert recipe.model.path == "runs/warm_start/model"
        measured = [stage for stage in recipe.plan() if stage.kind == "measure"]
        assert [(stage.name, stage.options) for stage in measured] == [
            ("before", {"num_tasks": 400}), ("after", {"num_tasks": 400}),
        ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"warm_start", "sft"}))
def test_each_may_take_as_many_environment_steps(name: str) -> None:
    plan = load_recipe(METHODS[name]).plan()
    played = [stage for stage in plan if stage.kind in ("collect", "reinforce") and stage.name != "demonstrations"]

    assert 3_995 <= sum(stage.options["max_env_steps"] for stage in played) <= 4_000
    for stage in played:
        if stage.kind == "collect":  # the start's episodes have 1.7 actions on average
            simulations = stage.options.get("strategy", {}).get("simulations", 1)
            episodes = stage.options["num_tasks"] * stage.options.get("samples_per_task", 1) * simulations
            assert episodes >= stage.options["max_env_steps"], "it ends by its steps, and not by its tasks"


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_keeps_nothing_goes_on(name: str) -> None:
    ends = [stage for stage in load_recipe(METHODS[name]).plan() if stage.kind in ("filter", "sft", "bradley_terry")]

    assert ends
    assert all(stage.options["if_nothing"] == "go_on" for stage in ends)
