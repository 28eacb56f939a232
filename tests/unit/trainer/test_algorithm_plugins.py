"""Algorithms as plug-ins: named by a recipe, with options of their own, checked before anything is trained."""

import json
from hashlib import sha256
from pathlib import Path

import pytest
from gymfleet_contracts.recipe import RecipeError
from gymfleet_kit.plugins import PluginError, described
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.plugins import ALGORITHMS, algorithm_of, own_sources, suitable_algorithm
from gymfleet_trainer.main import main

from tests.fixtures.paths import ROOT
from tests.fixtures.scored import make_recipe

MINE = """
import torch
from gymfleet_trainer.learning.policy_gradient import GroupBaseline, PolicyGradientOptions


class Options(PolicyGradientOptions):
    margin: float = 0.5


class Mine(GroupBaseline[Options]):
    \"\"\"Returns above a fixed margin.\"\"\"

    Options = Options

    def advantages(self, returns, groups):
        return returns - self.options.margin
"""


def section(**given: object) -> ReinforceOptions:
    return ReinforceOptions.model_validate(given)


def test_those_that_come_with_gymfleet() -> None:
    assert ALGORITHMS.included() == ["grpo", "ppo", "rloo"]
    for name in ALGORITHMS.included():
        assert type(algorithm_of(section(algorithm=name))) is ALGORITHMS.find(name)


def test_one_of_somebodys_own_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)

    algorithm = algorithm_of(section(algorithm=str(path), margin=0.25, clip_low=0.1))

    assert algorithm.options.model_dump() == {**type(algorithm).Options().model_dump(), "margin": 0.25, "clip_low": 0.1}
    assert algorithm.gamma == 1.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"algorithm": "grop"}, "there is no algorithm 'grop'; known: grpo, ppo, rloo; or give"),
        ({"gruop_size": 4}, r"rl.gruop_size: Extra inputs .* \(the options of grpo: clip_low, "),
        ({"clip_low": 0}, "rl.clip_low: Input should be greater than 0$"),
        ({"algorithm": "rloo", "normalise_by_std": False}, "rl.normalise_by_std: .*the options of rloo"),
        ({"critic": {"gamma": 0.5}}, "rl.critic: Extra inputs"),
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, 'rl.kl: .*"k1" has no gradient in expectation as a loss'),
    ],
)
def test_what_is_wrong_is_one_line(given: dict[str, object], reason: str) -> None:
    with pytest.raises(PluginError, match=reason) as caught:
        algorithm_of(section(**given))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kl", [{"coefficient": 0.1, "estimator": "k1", "placement": "reward"}, {"estimator": "k1"}, {"coefficient": 0.1}]
)
def test_a_kl_term_with_a_gradient_is_taken(kl: dict[str, object]) -> None:
    algorithm_of(section(kl=kl))


def test_the_algorithm_and_the_rest_of_the_recipe_agree() -> None:
    with pytest.raises(RecipeError, match=r"rl\.group_size must be at least 2 for rloo"):
        suitable_algorithm(make_recipe(rl={"algorithm": "rloo", "group_size": 1}))
    with pytest.raises(RecipeError, match='give "discounted_normalised"'):
        suitable_algorithm(make_recipe(rl={}, reward={"allocation": "discounted"}))
    critic = suitable_algorithm(
        make_recipe(
            rl={"algorithm": "ppo", "group_size": 1, "critic": {"gamma": 0.5}}, reward={"allocation": "discounted"}
        )
    )
    assert critic is not None
    assert critic.gamma == 0.5
    assert suitable_algorithm(make_recipe(rl=None)) is None


def test_the_files_of_plugins_are_pinned(tmp_path: Path) -> None:
    algorithm, component, absent = (tmp_path / name for name in ("mine.py", "brevity.py", "absent.py"))
    algorithm.write_text(MINE)
    component.write_text("1 / 0  # which the trainer does not import")
    reward = {
        "goal": {},
        "brevity": {"use": str(component)},
        "class": {"use": "tests.fixtures.scored:Component"},
        "elsewhere": {"use": str(absent)},
        "off": {"use": "./off.py", "enabled": False},
        "nowhere": {"use": "no.module:Component"},
    }

    pinned = own_sources(make_recipe(rl={"algorithm": str(algorithm)}, reward=reward))

    scored = Path(__file__).parents[2] / "fixtures/scored.py"
    assert pinned.keys() == {str(algorithm), str(component), str(absent), str(scored)}
    assert pinned[str(component)] == sha256(component.read_bytes()).hexdigest()
    assert pinned[str(absent)] == "", "it is the reward services' alone"
    assert own_sources(make_recipe(rl={}, reward={"format": {}})) == {}


def test_a_description_holds_as_long_as_its_sources_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)

    found = described("algorithm", str(path), ALGORITHMS.find(str(path)))

    assert (found.kind, found.summary) == ("algorithm", "Returns above a fixed margin.")
    assert found.facts == {"min_group_size": 2, "sums_rewards": True}
    properties = found.options["properties"]
    assert isinstance(properties, dict)
    assert {"margin", "clip_low"} < properties.keys()
    assert str(path.resolve()) in found.sources
    assert any(source.endswith("gymfleet_contracts/recipe.py") for source in found.sources), "whose sections it takes"
    assert found.current
    path.write_text(MINE + "# changed")
    assert not found.current
    path.unlink()
    assert not found.current


def test_descriptions_are_printed_for_those_who_cannot_import_torch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text("print('hello')" + MINE)

    main(["describe", "algorithm", "grpo", "nowhere", str(noisy)])

    grpo, nowhere, own = map(json.loads, capsys.readouterr().out.splitlines())
    assert grpo["reference"] == "grpo"
    assert nowhere["error"].startswith("there is no algorithm 'nowhere'; known: grpo")
    assert own["summary"] == "Returns above a fixed margin."


def test_the_sources_of_what_others_import_are_pinned_too(tmp_path: Path) -> None:
    algorithm, strategy = tmp_path / "mine.py", tmp_path / "best.py"
    algorithm.write_text(MINE)
    strategy.write_text("1 / 0  # never imported here")

    own = own_sources(make_recipe(rl={"algorithm": str(algorithm)}, rollout={"strategy": {"use": str(strategy)}}))

    assert own.keys() == {str(algorithm), str(strategy)}
    assert own == own_sources(
        make_recipe(rl={"algorithm": str(algorithm)}, rollout={"strategy": {"use": str(strategy)}})
    )
    assert own_sources(make_recipe()) == {}
    assert own_sources(make_recipe(rl=None, rollout={"strategy": {"use": "tests.models:Mine"}})).keys() == {
        str(ROOT / "tests/models.py")
    }
    assert own_sources(make_recipe(rollout={"strategy": {"use": "nowhere_at_all:Mine"}})) == {}


def test_the_files_of_somebodys_own_plugins_are_what_a_run_is_bound_to(tmp_path: Path) -> None:
    algorithm, reply_format = tmp_path / "mine.py", tmp_path / "format.py"
    algorithm.write_text(MINE)
    reply_format.write_text("from gymfleet_contracts.formats.react import React\n\n\nclass Mine(React):\n    pass\n")
    formats = {"format": {"use": str(reply_format)}}

    assert own_sources(make_recipe()) == {}
    assert own_sources(make_recipe(rl=None, rollout=formats)).keys() == {str(reply_format)}
    both = own_sources(make_recipe(rl={"algorithm": str(algorithm)}, rollout=formats))
    assert both.keys() == {str(algorithm), str(reply_format)}
    reply_format.write_text(reply_format.read_text() + "# changed\n")
    after = own_sources(make_recipe(rl={"algorithm": str(algorithm)}, rollout=formats))
    assert {path for path in both if both[path] != after[path]} == {str(reply_format)}
