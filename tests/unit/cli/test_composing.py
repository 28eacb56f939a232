"""Recipes that are written for an environment, an algorithm and a model."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.commands.envs import ENVIRONMENTS
from gymfleet_cli.composing import composed
from gymfleet_cli.console import UsageProblem
from gymfleet_cli.main import run
from gymfleet_cli.recipes import checked, to_toml
from gymfleet_contracts.recipe import load_recipe
from gymfleet_contracts.session import Capabilities, EnvironmentSpec, ForkSupport
from gymfleet_kit.plugins import included
from gymfleet_trainer.run.plan import stages_of

from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.usefixtures("plugins_are_known")

ALGORITHMS = included("gymfleet_trainer.algorithms")
FORKING = Capabilities(deterministic=True, expert=True, fork=ForkSupport.NATIVE, state_keys=True)


def spec(**changes: Any) -> EnvironmentSpec:
    given: dict[str, Any] = {
        "name": "shop", "version": "1.0.0", "summary": "Buy.", "instructions": "Buy.", "max_turns": 100,
        "levels": ("one", "two"), "default_level": "two", "splits": {"train": 10, "validation": 5, "test": 5},
        "capabilities": FORKING, "format": "think_act", **changes,
    }  # fmt: skip
    return EnvironmentSpec.model_validate(given)


def kinds(*arguments: Any, **more: Any) -> list[str]:
    return [stage.name for stage in composed(*arguments, **more).plan()]


@pytest.mark.parametrize("model", [None, "Qwen/Qwen3-0.6B"])
@pytest.mark.parametrize("algorithm", ["sft", *ALGORITHMS])
def test_what_is_written_is_a_complete_recipe(tmp_path: Path, algorithm: str, model: str | None) -> None:
    recipe = composed(spec(), algorithm, model)
    written = tmp_path / "written.toml"
    written.write_text(to_toml(recipe), encoding="utf-8")

    assert load_recipe(written) == recipe
    assert checked(recipe, [], where="the recipe") == recipe, "nothing that the algorithm needs is missing"
    assert recipe.name == f"shop-{algorithm}"
    assert recipe.rollout.format.use == "think_act"
    assert recipe.rollout.limits.max_turns == 30
    assert recipe.environments[0].level == "two"
    assert (recipe.model.path, recipe.model.scratch is None) == (model, model is not None)
    stages_of(recipe)


def test_a_model_from_scratch_is_warmed_up_and_one_that_is_given_is_not() -> None:
    assert kinds(spec(), "grpo", None) == ["demonstrations", "sft", "before", "reinforce", "after"]
    assert kinds(spec(), "grpo", "some/model") == ["before", "reinforce", "after"]
    assert kinds(spec(), "sft", "some/model") == ["demonstrations", "sft", "after"]


def test_limits_and_splits_are_those_that_there_are() -> None:
    recipe = composed(spec(max_turns=4, splits={"train": 3, "validation": 2}), "grpo", None, level="one")

    assert recipe.rollout.limits.max_turns == 4
    assert (recipe.environments[0].level, recipe.environments[0].eval_split) == ("one", "validation")


@pytest.mark.parametrize(("num_chars", "length"), [(0, 2048), (1600, 2048), (1700, 3072), (7400, 5120)])
def test_long_instructions_leave_room_for_the_episode(num_chars: int, length: int) -> None:
    recipe = composed(spec(instructions="Buy." * (num_chars // 4)), "grpo", None)

    assert recipe.inference.max_model_len == length
    assert recipe.rollout.limits.max_context_tokens == length - 48
    assert recipe.inference.max_num_batched_tokens == max(length, 4096)


@pytest.mark.parametrize(("algorithm", "model"), [("grpo", None), ("sft", "some/model")])
def test_without_an_expert_there_is_nothing_to_begin_with(algorithm: str, model: str | None) -> None:
    with pytest.raises(UsageProblem, match="shop has no expert whose demonstrations"):
        composed(spec(capabilities=Capabilities(deterministic=True)), algorithm, model)
    composed(spec(capabilities=Capabilities(deterministic=True)), "grpo", "some/model")


@pytest.mark.parametrize("algorithm", ["monte_carlo", "tree_grpo"])
def test_credit_by_forks_takes_an_environment_that_forks(algorithm: str) -> None:
    with pytest.raises(UsageProblem, match=f"--algorithm {algorithm}: sessions of shop cannot be forked"):
        composed(spec(capabilities=Capabilities(deterministic=True)), algorithm, "some/model")


@pytest.mark.parametrize(("algorithm", "name"), [("./mine/own.py", "shop-own"), ("pkg.mod:Algo", "shop-pkg.mod-Algo")])
def test_an_algorithm_of_ones_own_names_a_run(algorithm: str, name: str) -> None:
    assert composed(spec(), algorithm, None).name == name


@pytest.mark.parametrize(("model", "warmup_steps"), [(None, 3), ("some/model", 10)])
def test_a_critic_is_warmed_up_for_a_tenth_of_the_steps(model: str | None, warmup_steps: int) -> None:
    for algorithm in ("ppo", "turn_ppo", "vapo"):
        (stage,) = (one for one in composed(spec(), algorithm, model).plan() if one.kind == "reinforce")
        assert stage.options["critic"]["warmup_steps"] == warmup_steps


def test_a_level_that_is_not_there_is_told() -> None:
    with pytest.raises(UsageProblem, match="--level hard: shop has one, two"):
        composed(spec(), "grpo", None, level="hard")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train"], "give a recipe, or --env with an environment to write one for"),
        (
            ["train", str(ROOT / "recipes" / "quickstart.toml"), "--algorithm", "ppo"],
            "--algorithm is for a recipe that is written, and ",
        ),
        (["train", "--env", "maze", "--model", str(ROOT / "docs")], f"--model {ROOT / 'docs'}: there is no model in"),
        (["train", "--env", "maze", "--level", "huge"], "--level huge: maze has tiny, small, medium, large"),
        (["train", "--env", "maze", "--algorithm", "grop"], "the recipe: stages.reinforce.algorithm: there is no "),
    ],
)
def test_what_cannot_be_written_is_a_line(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*arguments, "--run-dir", str(tmp_path / "run")]) == 2

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {told}")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_a_recipe_that_is_sound(name: str) -> None:
    recipes = [load_recipe(path) for path in sorted((ROOT / "recipes").glob("*.toml"))]
    own = [recipe for recipe in recipes if {section.name for section in recipe.environments} == {name}]

    assert own
    for recipe in own:
        stages_of(recipe)
    assert any(stage.kind == "reinforce" for recipe in own for stage in recipe.plan())
