"""Recipes: a wrong key is named, with the file."""

from pathlib import Path

import pytest
from gymfleet_contracts.recipe import AlgorithmFacts, Recipe, RecipeError, load_recipe
from gymfleet_contracts.reply_format import FormatSection
from gymfleet_contracts.reward import RewardSpec

MINIMAL = """
name = "maze-grpo"
[env]
name = "maze"
[model]
path = "some/model"
[rollout.limits]
max_context_tokens = 1024
"""


def load(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path)


def test_a_minimal_recipe_has_defaults_for_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(MINIMAL, encoding="utf-8")

    recipe = load_recipe(path)

    assert recipe.env.name == "maze"
    assert recipe.env.train_split != recipe.env.eval_split


@pytest.mark.parametrize(
    ("addition", "use", "options"),
    [
        pytest.param("", "react", {}, id="none"),
        pytest.param('[rollout]\nformat = "dbbench"', "dbbench", {}, id="by its name"),
        pytest.param('[rollout.format]\nuse = "dbbench"', "dbbench", {}, id="a table"),
        pytest.param('[rollout.format]\nuse = "a.py"\nn = [1, 2]', "a.py", {"n": [1, 2]}, id="with options"),
    ],
)
def test_the_reply_format(tmp_path: Path, addition: str, use: str, options: dict[str, object]) -> None:
    recipe = load(tmp_path, MINIMAL.replace("[rollout.limits]\nmax_context_tokens = 1024\n", addition))

    assert (recipe.rollout.format.use, recipe.rollout.format.options) == (use, options)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe


@pytest.mark.parametrize(
    ("use", "name"),
    [("react", "react"), ("./my/own.py", "own"), ("own.py", "own"), ("a.own:Own", "a.own:Own")],
)
def test_the_name_of_a_reply_format_tells_nobody_where_its_file_is(use: str, name: str) -> None:
    assert FormatSection(use=use).name == name


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        pytest.param("[eval]\nnum_taks = 4", "eval.num_taks: Extra inputs are not permitted", id="misspelt key"),
        pytest.param("[eval.sampling]\ntemp = 2.0", "eval.sampling.temp: Extra inputs", id="misspelt nested key"),
        pytest.param("[reward]\ngama = 0.5", "gama: unknown; known: allocation, gamma, and tables", id="no component"),
        pytest.param('[reward."a b"]', "'a b' is no label", id="a label that is no name"),
        pytest.param("[reward.goal]\nenabled = 1", "reward.goal.enabled: Input should be a valid bool", id="no switch"),
        pytest.param('[rl]\nsteps = "many"', "rl.steps: Input should be a valid integer", id="wrong type"),
        pytest.param("[rl]\nupdates_per_step = 99", "rl.updates_per_step must not exceed", id="updates of no group"),
        pytest.param("[inference]\nmax_model_len = 512", "must not exceed inference.max_model_len", id="does not fit"),
        pytest.param('[inference]\nbackend = "server"', "inference.urls must be given", id="a server without URL"),
        pytest.param("[rl\n", "is not readable TOML", id="not TOML"),
        pytest.param(
            "[rollout.sampling]\ntemperature = 0\n[rl]",
            "rollout.sampling.temperature = 0 cannot be trained on",
            id="greedy training",
        ),
        pytest.param(
            "[rollout.sampling]\ntemperature = 0.001\n[rl]", "below 0.01 the engine samples", id="all but greedy"
        ),
    ],
)
def test_a_mistake_is_named_with_its_key_and_file(tmp_path: Path, addition: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, MINIMAL + addition)

    assert message in str(error.value)
    assert "recipe.toml" in str(error.value)


@pytest.mark.parametrize(
    "addition",
    [
        pytest.param("[rollout.sampling]\ntemperature = 0", id="greedy, without training"),
        pytest.param("[eval.sampling]\ntemperature = 0\n[rl]", id="greedy measurements"),
        pytest.param('[rl]\nalgorithm = "./mine.py"\nmy_option = 3', id="an algorithm of one's own, with options"),
    ],
)
def test_what_is_sound_is_not_refused(tmp_path: Path, addition: str) -> None:
    load(tmp_path, MINIMAL + addition)


@pytest.mark.parametrize(
    ("addition", "gamma"),
    [
        pytest.param("", 0.5, id="as the algorithm does"),
        pytest.param("[reward]\ngamma = 0.9", 0.9, id="as given"),
        pytest.param("[reward]\ngamma = 0", 0.0, id="a given 0 is given"),
    ],
)
def test_the_reward_is_discounted_as_the_algorithm_does(tmp_path: Path, addition: str, gamma: float) -> None:
    recipe = load(tmp_path, MINIMAL + addition)

    assert recipe.reward_spec(0.5).gamma == gamma


@pytest.mark.parametrize(
    ("addition", "reason"),
    [
        pytest.param("[rl]\ngroup_size = 1", "rl.group_size must be at least 2 for grpo", id="a group of one"),
        pytest.param('[rl]\n[reward]\nallocation = "discounted"', '"discounted_normalised"', id="growing returns"),
    ],
)
def test_an_algorithm_that_compares_returns_asks_for_some(tmp_path: Path, addition: str, reason: str) -> None:
    recipe = load(tmp_path, MINIMAL + addition)

    with pytest.raises(RecipeError, match=reason):
        recipe.suits(AlgorithmFacts(min_group_size=2, sums_rewards=True))
    recipe.suits(AlgorithmFacts())


def test_an_algorithms_options_are_the_keys_that_the_table_does_not_have(tmp_path: Path) -> None:
    recipe = load(tmp_path, MINIMAL + "[rl]\nsteps = 3\nclip_low = 0.1\n[rl.kl]\ncoefficient = 0.5")

    assert recipe.rl is not None
    assert recipe.rl.steps == 3
    assert recipe.rl.options == {"clip_low": 0.1, "kl": {"coefficient": 0.5}}
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    load(tmp_path, MINIMAL).suits(AlgorithmFacts(min_group_size=99))


def test_every_component_goes_onto_the_wire(tmp_path: Path) -> None:
    terms = """
    allocation = "uniform_positive"
    gamma = 0.25
    environment = {weight = 1.5, on_error = "zero", credit = "per_turn"}
    goal = {enabled = false, success = 3.0}
    brevity = {use = "./brevity.py", limits = {low = 1, high = [2, 3]}}
    """
    recipe = load(tmp_path, f"{MINIMAL}[reward]\n{terms}")
    spec = recipe.reward_spec(1.0)

    assert spec.model_dump() == recipe.reward.model_dump()
    assert RewardSpec.model_validate_json(spec.model_dump_json()) == spec
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert spec.used == {"environment": "environment", "brevity": "./brevity.py"}
    assert spec.components["brevity"].options == {"enabled": True, "limits": {"low": 1, "high": [2, 3]}}


def test_the_goal_counts_unless_it_is_switched_off(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).reward.used == {"goal": "goal"}
    assert load(tmp_path, MINIMAL + "[reward.format]").reward.used == {"goal": "goal", "format": "format"}
    assert load(tmp_path, MINIMAL + "[reward.goal]\nenabled = false").reward.used == {}


def test_several_mistakes_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, MINIMAL + '[rl]\nsteps = 0\ngroup_size = "x"\n[eval]\ntypo = 1')

    assert all(key in str(error.value) for key in ("rl.steps", "rl.group_size", "eval.typo"))


def test_measuring_on_the_training_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"env: .*env.eval_split must differ from env.train_split"):
        load(tmp_path, MINIMAL.replace('name = "maze"\n', 'name = "maze"\neval_split = "train"\n'))


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no recipe at .*absent\.toml"):
        load_recipe(tmp_path / "absent.toml")


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(RecipeError, match=r"recipe\.toml is not readable TOML"):
        load_recipe(path)
