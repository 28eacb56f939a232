"""Algorithms as plug-ins: named by a recipe, with options of their own, checked before anything is trained."""

import json
from pathlib import Path

import pytest
from gymfleet_kit.plugins import PluginError, described
from gymfleet_trainer.learning.options import ReinforceOptions
from gymfleet_trainer.learning.plugins import ALGORITHMS, algorithm_of
from gymfleet_trainer.main import main

from tests.fixtures.scored import make_scored

MINE = """
import torch
from gymfleet_trainer.learning.policy_gradient import ClippedOptions, GroupBaseline


class Options(ClippedOptions):
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
    assert ALGORITHMS.included() == [
        "cispo", "clip_cov", "dapo", "decoupled_ppo", "dpo", "dr_grpo", "gigpo", "gmpo", "gpg", "grpo", "gspo", "ipo",
        "kl_cov", "kto", "monte_carlo", "opo", "orpo", "ppo", "reinforce_pp", "reinforce_pp_baseline", "remax", "rloo",
        "sapo", "simpo", "tree_grpo", "turn_ppo", "vapo",
    ]  # fmt: skip
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
        ({"algorithm": "grop"}, "there is no algorithm 'grop'; known: .*grpo.*; or give"),
        ({"gruop_size": 4}, r"stages\.reinforce\.gruop_size: Extra inputs .* \(the options of grpo: aggregation, "),
        ({"clip_low": 0}, r"stages\.reinforce\.clip_low: Input should be greater than 0$"),
        (
            {"algorithm": "rloo", "normalise_by_std": False},
            r"stages\.reinforce\.normalise_by_std: .*the options of rloo",
        ),
        ({"critic": {"gamma": 0.5}}, r"stages\.reinforce\.critic: Extra inputs"),
        (
            {"kl": {"coefficient": 0.1, "estimator": "k1"}},
            r'stages\.reinforce\.kl: .*"k1" has no gradient in expectation as a loss',
        ),
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


@pytest.mark.parametrize(
    ("totals", "options", "verdict"),
    [
        ((0.5, 0.5), {"dynamic_sampling": True}, "another"),
        ((0.5, 0.5, 0.25), {"dynamic_sampling": True}, "keep"),
        ((0.5, 0.5), {}, "keep"),
        ((0.5, 0.5), {"algorithm": "rloo"}, "keep"),
        ((0.5,), {"algorithm": "ppo"}, "keep"),
    ],
)
def test_grpo_asks_for_another_group_where_all_rewards_are_equal_if_it_is_told_to(
    totals: tuple[float, ...], options: dict[str, object], verdict: str
) -> None:
    group = [make_scored(sample=sample, total=total) for sample, total in enumerate(totals)]

    assert algorithm_of(section(**options)).select(group) == verdict


def test_a_description_holds_as_long_as_its_sources_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)

    found = described("algorithm", str(path), ALGORITHMS.find(str(path)))

    assert (found.kind, found.summary) == ("algorithm", "Returns above a fixed margin.")
    assert found.facts == {"min_group_size": 2, "sums_rewards": True, "state_keys": False, "values": False}
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
    assert nowhere["error"].startswith("there is no algorithm 'nowhere'; known: ")
    assert own["summary"] == "Returns above a fixed margin."
