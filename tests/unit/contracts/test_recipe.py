"""Recipes: a wrong key is named, with the file."""

from pathlib import Path

import pytest
from gymfleet_contracts.recipe import Recipe, RecipeError, load_recipe

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
    ("addition", "message"),
    [
        pytest.param("[rl]\ngruop_size = 4", "rl.gruop_size: Extra inputs are not permitted", id="misspelt key"),
        pytest.param("[reward.goal]\nsucess = 2.0", "reward.goal.sucess: Extra inputs", id="misspelt nested key"),
        pytest.param('[rl]\nalgorithm = "grop"', "rl.algorithm: Input should be 'grpo' or 'ppo'", id="unknown choice"),
        pytest.param('[rl]\nsteps = "many"', "rl.steps: Input should be a valid integer", id="wrong type"),
        pytest.param("[rl]\ngroup_size = 1", "rl.group_size must be at least 2", id="a group of one"),
        pytest.param(
            "[reward.length]\nmin_tokens = 9\nmax_tokens = 3", "length.min_tokens must not exceed", id="bounds crossed"
        ),
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
        pytest.param(
            '[rl.kl]\ncoefficient = 0.1\nestimator = "k1"',
            'rl.kl: Value error, rl.kl.estimator = "k1" has no gradient in expectation as a loss: '
            'give estimator = "k2" or "k3", or placement = "reward"',
            id="k1 as a loss",
        ),
        pytest.param(
            '[rl]\n[reward]\nallocation = "discounted"', '"discounted_normalised"', id="returns that grow with turns"
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
        pytest.param('[rl.kl]\ncoefficient = 0.1\nestimator = "k1"\nplacement = "reward"', id="k1 in the reward"),
        pytest.param('[rl.kl]\nestimator = "k1"', id="k1 that is off"),
        pytest.param('[rl]\nalgorithm = "ppo"\n[reward]\nallocation = "discounted"', id="discounted, with a critic"),
        pytest.param('[rl]\n[reward]\nallocation = "discounted_normalised"', id="conserved returns, for grpo"),
    ],
)
def test_what_is_sound_is_not_refused(tmp_path: Path, addition: str) -> None:
    load(tmp_path, MINIMAL + addition)


@pytest.mark.parametrize(
    ("addition", "gamma"),
    [
        pytest.param("", 1.0, id="no training"),
        pytest.param("[rl]\n[rl.critic]\ngamma = 0.5", 1.0, id="grpo does not discount"),
        pytest.param('[rl]\nalgorithm = "ppo"\n[rl.critic]\ngamma = 0.5', 0.5, id="as the critic does"),
        pytest.param('[rl]\nalgorithm = "ppo"\n[rl.critic]\ngamma = 0.5\n[reward]\ngamma = 0.9', 0.9, id="as given"),
        pytest.param('[rl]\nalgorithm = "ppo"\n[reward]\ngamma = 0', 0.0, id="a given 0 is given"),
    ],
)
def test_the_reward_is_discounted_as_the_algorithm_does(tmp_path: Path, addition: str, gamma: float) -> None:
    recipe = load(tmp_path, MINIMAL + addition)

    assert recipe.reward_spec.gamma == gamma


def test_every_term_of_the_reward_goes_onto_the_wire(tmp_path: Path) -> None:
    terms = """
    allocation = "uniform_positive"
    gamma = 0.25
    environment = {enabled = true, weight = 1.5, on_error = "zero", credit = "per_turn"}
    goal = {enabled = false, weight = 2.0, success = 3.0, failure = 4.0, partial = true}
    format = {enabled = true, weight = 5.0}
    length = {enabled = true, weight = 6.0, min_tokens = 7, max_tokens = 8, shape = "log"}
    """
    recipe = load(tmp_path, f"{MINIMAL}[reward]\n{terms}")

    assert recipe.reward_spec.model_dump() == recipe.reward.model_dump()


def test_several_mistakes_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        load(tmp_path, MINIMAL + '[rl]\nsteps = 0\ntypo = 1\nclip_low = "x"')

    assert all(key in str(error.value) for key in ("rl.steps", "rl.typo", "rl.clip_low"))


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
