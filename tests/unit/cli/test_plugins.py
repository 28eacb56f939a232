"""The command line checks the plug-ins of a recipe: before a process is started, and without importing them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.console import CliError
from gymfleet_cli.plugins import check_plugins, description
from gymfleet_contracts.recipe import RecipeError

from tests.fixtures.paths import ROOT
from tests.fixtures.scored import make_recipe
from tests.unit.trainer.test_algorithm_plugins import MINE

STRATEGY = """
from gymfleet_rollout.strategy import Strategy, StrategyOptions


class Options(StrategyOptions):
    width: int = 2


class Mine(Strategy[Options]):
    Options = Options

    async def play(self, ctx):
        ctx.export(await ctx.open())
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


@pytest.fixture
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not cached cannot be known."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a service was asked")

    monkeypatch.setattr(subprocess, "run", refuse)


@pytest.mark.parametrize(
    ("rl", "reason"),
    [
        ({"gruop_size": 4}, r"^rl\.gruop_size: unknown; grpo knows: clip_low, clip_high, .*normalise_by_std$"),
        ({"kl": {"weight": 1.0}}, r"^rl\.kl\.weight: unknown; grpo knows: coefficient, estimator, placement$"),
        ({"clip_low": 0}, r"^rl\.clip_low: 0 is less than or equal to the minimum of 0$"),
        (
            {"aggregation": "mean", "clip_low": "x"},
            r"rl\.aggregation: 'mean' is not .*; rl\.clip_low: 'x' is not",
        ),
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, r'^rl\.kl: estimator = "k1" has no gradient in expectation'),
        ({"algorithm": "grop"}, "there is no algorithm 'grop'; known: grpo, ppo, rloo; or give"),
        ({"algorithm": "./nothing.py"}, "there is no file nothing.py"),
        ({"group_size": 1}, r"rl\.group_size must be at least 2 for grpo"),
    ],
)
def test_what_is_wrong_is_one_line(rl: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rl={"group_size": 4, **rl}))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rl",
    [
        {},
        {"kl": {"coefficient": 0.1, "estimator": "k1", "placement": "reward"}},
        {"kl": {"estimator": "k1"}},
        {"algorithm": "ppo", "critic": {"gamma": 0.9, "optimizer": {"betas": [0.5, 0.9]}}, "dual_clip": 2},
    ],
)
def test_what_is_sound_is_taken(rl: dict[str, Any]) -> None:
    check_plugins(make_recipe(rl={"group_size": 4, **rl}))


@pytest.mark.parametrize(
    ("reward", "reason"),
    [
        (
            {"goal": {"sucess": 1.0}},
            r"^reward\.goal\.sucess: unknown; goal knows: enabled, weight, on_error, success, ",
        ),
        ({"goal": {"success": "1"}}, r"^reward\.goal\.success: '1' is not of type 'number'$"),
        ({"short": {"use": "length", "shape": "x"}}, r"^reward\.short\.shape: 'x' is not one of"),
        ({"length": {"max_tokens": 10}}, r"^reward\.length: min_tokens <= max_tokens does not hold: 20, 10$"),
        ({"brevty": {}}, "there is no component 'brevty'; known: environment, format, goal, length; or give"),
        ({"brevity": {"use": "./nothing.py"}}, "there is no file nothing.py"),
    ],
)
def test_what_is_wrong_with_a_component_is_one_line(reward: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rl=None, reward=reward))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ({"use": "nothing"}, "there is no strategy 'nothing'; known: expert, independent; or give"),
        ({"widht": 1}, r"^rollout\.strategy\.widht: unknown; independent knows: no options$"),
        ({"use": "expert"}, r"^rollout\.strategy: expert has the environment's expert write the replies"),
        ({"use": "./nothing.py"}, "there is no file nothing.py"),
    ],
)
def test_a_strategy_that_cannot_be_used_is_one_line(strategy: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rollout={"strategy": strategy}))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"use": "tags", "actoin_tag": "a"},
            r"^rollout\.format\.actoin_tag: unknown; tags knows: thought_tag, act",
        ),
        ({"use": "tags", "action_tag": "a b"}, r"^rollout\.format\.action_tag: 'a b' does not match "),
        ({"sign": "$"}, r"^rollout\.format\.sign: unknown; react knows: no options$"),
        ({"use": "morse"}, "there is no format 'morse'; known: agentbench_os, dbbench, react, sqlgym, tags; or give"),
        ({"use": "./nothing.py"}, "there is no file nothing.py"),
    ],
)
def test_what_is_wrong_with_a_reply_format_is_one_line(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecipeError, match=reason) as caught:
        check_plugins(make_recipe(rl=None, rollout={"format": given}))

    assert "\n" not in str(caught.value)


def test_components_of_somebodys_own_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def compute_score(solution_str, ground_truth):\n    return 1.0\n")
    check_plugins(make_recipe(rl=None, reward={"own": {"use": str(path), "ground_truth_from": "info.answer"}}))

    with pytest.raises(RecipeError, match=r"^reward\.own: 'ground_truth_from' is a required property$"):
        check_plugins(make_recipe(rl=None, reward={"own": {"use": str(path)}}))


def test_what_is_measured_alone_is_checked_too(
    no_service: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(AssertionError, match="a service was asked"):
        check_plugins(make_recipe(rl=None))


def test_a_strategys_own_options_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(STRATEGY)
    rollout = {"strategy": {"use": str(path), "width": 3}}

    check_plugins(make_recipe(rollout=rollout))
    with pytest.raises(RecipeError, match=r"rollout\.strategy\.width: 'x' is not of type 'integer'"):
        check_plugins(make_recipe(rollout={"strategy": {**rollout["strategy"], "width": "x"}}))


def test_expert_episodes_are_no_fault_without_reinforcement_learning() -> None:
    check_plugins(make_recipe(rollout={"strategy": {"use": "expert"}}, rl=None))


def test_a_reply_format_with_options_is_taken() -> None:
    check_plugins(make_recipe(rl=None, rollout={"format": {"use": "tags", "action_tag": "act"}}))


def test_what_is_known_is_not_asked_for_again(request: pytest.FixtureRequest) -> None:
    check_plugins(make_recipe())
    request.getfixturevalue("no_service")

    check_plugins(make_recipe())


def test_a_plugin_that_changed_is_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    assert "margin" in str(description("algorithm", str(path)).options)

    path.write_text(MINE.replace("margin", "distance"))

    assert "distance" in str(description("algorithm", str(path)).options)
    path.write_text("1 / 0")
    with pytest.raises(RecipeError, match=r"mine\.py cannot be imported: ZeroDivisionError: division by zero"):
        description("algorithm", str(path))


def test_a_cache_that_cannot_be_written_or_read_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    check_plugins(make_recipe())


def test_a_service_that_cannot_answer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = subprocess.CompletedProcess([], 1, "", "Traceback\nerror: No module named 'torch'\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: broken)

    with pytest.raises(CliError, match="gymfleet-rollout cannot say what the format react is: No module named 'tor"):
        check_plugins(make_recipe())


def test_checking_imports_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from gymfleet_cli.recipes import load_checked; "
        "load_checked(Path('recipes/quickstart.toml'), ()); assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
