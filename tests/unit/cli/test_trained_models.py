"""A recipe that asks the reward models that it trains: what its reward service is told, and what is refused before."""

import json
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.running import run_plan
from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_reward.settings import RewardSettings

from tests.fixtures.scored import make_recipe

pytestmark = pytest.mark.usefixtures("plugins_are_known")

COLLECT = {"kind": "collect"}
TRAINED = {"kind": "bradley_terry", "data": "collect"}
STEPS = {"kind": "process_reward", "name": "steps", "data": "collect"}
VARIABLE = "GYMFLEET_REWARD_MODELS"


def asks(component: str = "reward_model", model: str = "bradley_terry", **more: Any) -> dict[str, Any]:
    return {"kind": "reinforce", "reward": {component: {"model": model}}, **more}


def loop(*stages: dict[str, Any]) -> Recipe:
    return make_recipe(stages=[{"repeat": 2, "name": "loop", "stages": list(stages)}])


def told(recipe: Recipe, run_dir: Path) -> dict[str, Any]:
    (reward,) = run_plan(recipe, None, run_dir, run_dir, None).rewards()
    return dict(json.loads(reward.env[VARIABLE])) if VARIABLE in reward.env else {}


def test_the_reward_service_is_told_where_trained_models_come_to_lie(tmp_path: Path) -> None:
    found = told(loop(COLLECT, TRAINED, STEPS, asks(), asks("process_reward_model", "steps", name="other")), tmp_path)

    common = {"kind": "embedded", "max_tokens": 4096, "reload": True}
    assert found == {
        "bradley_terry": {**common, "scores": "episode", "path": str(tmp_path / "reward-models" / "bradley_terry")},
        "steps": {**common, "scores": "turns", "path": str(tmp_path / "reward-models" / "steps")},
    }
    assert RewardSettings.model_validate({"models": found}).models.keys() == found.keys()


def test_a_recipe_that_asks_none_leaves_the_variable_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(loop(COLLECT, TRAINED, {"kind": "reinforce"}), tmp_path) == {}
    monkeypatch.setenv(VARIABLE, '{"helpful": {"kind": "embedded", "path": "/models/helpful"}}')
    asked = loop(COLLECT, TRAINED, asks(model="helpful"))

    assert told(asked, tmp_path) == {}, "the service inherits it"


def test_the_operators_models_stay_and_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"kind": "embedded", "path": "/models/mine", "devices": ["cuda:0"]}
    monkeypatch.setenv(VARIABLE, json.dumps({"bradley_terry": own, "helpful": own}))
    recipe = loop(COLLECT, TRAINED, STEPS, asks(), asks("process_reward_model", "steps", name="other"))

    found = told(recipe, tmp_path)

    assert found["bradley_terry"] == found["helpful"] == own
    assert found["steps"]["path"] == str(tmp_path / "reward-models" / "steps")


@pytest.mark.parametrize("place", ["reward", "rollout.evaluator"])
def test_rewards_of_the_whole_recipe_may_ask_them_too(tmp_path: Path, place: str) -> None:
    table = {"short": {"use": "reward_model", "model": "bradley_terry"}}
    sections = {"reward": table} if place == "reward" else {"rollout": {"evaluator": table}}

    assert told(make_recipe(stages=[COLLECT, TRAINED, {"kind": "reinforce"}], **sections), tmp_path).keys() == {
        "bradley_terry"
    }


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        (
            [COLLECT, TRAINED, asks(model="helpful")],
            (
                r"^stages\.loop\.stages\.reinforce\.reward\.reward_model\.model: there is no model 'helpful' for "
                r"reward_model: name one that a stage of the recipe trains \(bradley_terry\), or one of "
                r"GYMFLEET_REWARD_MODELS \(none\)$"
            ),
        ),
        (
            [COLLECT, TRAINED, STEPS, asks(model="steps")],
            r"there is no model 'steps' for reward_model: .*\(bradley_terry\)",
        ),
        (
            [COLLECT, TRAINED, asks("process_reward_model")],
            r"no model 'bradley_terry' for process_reward_model: .*\(none\)",
        ),
        ([COLLECT, asks(model="collect")], r"there is no model 'collect' for reward_model"),
        (
            [COLLECT, asks(), TRAINED],
            (
                r"^stages\.loop\.stages\.reinforce\.reward\.reward_model\.model: the stage bradley_terry comes after "
                r"loop1\.reinforce, which asks its model$"
            ),
        ),
    ],
)
def test_a_model_that_nothing_has_is_refused_before_anything_is_started(
    tmp_path: Path, stages: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(RecipeError, match=reason):
        told(loop(*stages), tmp_path)


def test_a_component_that_does_not_count_asks_for_nothing(tmp_path: Path) -> None:
    off = {"kind": "reinforce", "reward": {"reward_model": {"model": "nowhere", "enabled": False}}}

    assert told(loop(COLLECT, off), tmp_path) == {}


def test_a_variable_that_is_no_table_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "helpful")

    with pytest.raises(FleetError, match=r"^GYMFLEET_REWARD_MODELS is no JSON of the form \{"):
        told(make_recipe(), tmp_path)
