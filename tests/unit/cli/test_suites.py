"""Suites on the command line: which models, by which recipe, what is kept, and the table."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.collecting.measuring import setting_of
from gymfleet_cli.collecting.plan import Manner
from gymfleet_cli.console import CliError, out
from gymfleet_cli.report.data import Measurement
from gymfleet_cli.suites import Figure, Results, Stage, figure_of, key_of, print_table, recipe_for, stages_of
from gymfleet_contracts.recipe import RecipeError
from gymfleet_contracts.suite import Suite

from tests.fixtures.scored import make_recipe

MEASURED = Measurement(
    name="measure", num_episodes=4, success=0.25, interval=(0.05, 0.7), mean_score=0.6, score_interval=(0.2, 0.9)
)


def suite_of(*tables: dict[str, Any]) -> Suite:
    return Suite.model_validate({"name": "some", "environments": list(tables)})


def figure(environment: str, stage: str, value: float) -> Figure:
    return Figure(
        key=f"{environment} {stage}", environment=environment, stage=stage, metric="success", value=value,
        interval=(0.0, 1.0), num_episodes=4,
    )  # fmt: skip


@pytest.mark.parametrize(("metric", "value", "interval"), [("success", 0.25, (0.05, 0.7)), ("score", 0.6, (0.2, 0.9))])
def test_figure_is_that_of_the_metric(metric: str, value: float, interval: tuple[float, float]) -> None:
    (env,) = suite_of({"name": "maze", "metric": metric}).environments

    found = figure_of("key", Stage("base", Path("model")), env, MEASURED)

    assert (found.environment, found.stage, found.value, found.interval) == ("maze", "base", value, interval)


def test_a_model_is_measured_by_its_own_recipe_elsewhere() -> None:
    recipe = make_recipe(inference={"max_model_len": 5000}, reward={"format": {"weight": 0.5}})
    (env,) = suite_of({"name": "wordle", "episodes": 7, "limits": {"max_turns": 3}}).environments

    found = recipe_for(recipe, env, where="some")

    assert [(one.name, found.limits_of(one).max_turns) for one in found.environments] == [("wordle", 3)]
    assert [(stage.kind, stage.options["num_tasks"]) for stage in found.plan()] == [("measure", 7)]
    assert (found.inference, found.model) == (recipe.inference, recipe.model)


def test_limits_beyond_the_engine_are_refused_by_name() -> None:
    (env,) = suite_of({"name": "wordle", "limits": {"max_context_tokens": 100_000}}).environments

    with pytest.raises(RecipeError, match=r"suite some, wordle: .*max_context_tokens \(100000\) must not exceed"):
        recipe_for(make_recipe(), env, where="some")


def test_every_stage_that_left_a_model_has_a_column(tmp_path: Path) -> None:
    left = [
        {"name": "demonstrations", "kind": "collect", "seconds": 1.0, "episodes": "trajectories/demonstrations.jsonl"},
        {"name": "sft", "kind": "sft", "seconds": 1.0, "model": "models/sft"},
        {"name": "reinforce", "kind": "reinforce", "seconds": 1.0, "model": "models/reinforce"},
    ]
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "stages.json").write_text(json.dumps(left))
    for name in ("start", "models/sft", "models/reinforce"):
        (tmp_path / name).mkdir(parents=True)
    recipe = make_recipe(model={"path": str(tmp_path / "start")})

    every = stages_of(recipe, tmp_path, tmp_path / "models" / "reinforce", every=True)
    last = stages_of(recipe, tmp_path, tmp_path / "models" / "reinforce", every=False)

    assert [one.title for one in every] == ["base", "+ sft", "+ reinforce"]
    assert [one.model.name for one in every] == ["start", "sft", "reinforce"]
    assert [one.model.name for one in last] == ["reinforce"]
    (tmp_path / "models" / "sft").rmdir()
    with pytest.raises(CliError, match=r"there is no model at .*models/sft any more"):
        stages_of(recipe, tmp_path, None, every=True)


def test_what_was_measured_is_found_again_until_weights_or_the_table_change(tmp_path: Path) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"first")
    (env,) = suite_of({"name": "maze", "episodes": 5}).environments
    (more,) = suite_of({"name": "maze", "episodes": 6}).environments
    key = key_of(recipe_for(make_recipe(), env, where="some"), weights.parent)
    path = tmp_path / "suites" / "some.json"

    Results(path).keep(figure("maze", "base", 0.5).model_copy(update={"key": key}))

    found = Results(path).get(key, "success")
    assert found is not None
    assert found.value == 0.5
    assert Results(path).get(key, "score") is None
    assert key_of(recipe_for(make_recipe(), more, where="some"), weights.parent) != key
    weights.write_bytes(b"second")
    assert key_of(recipe_for(make_recipe(), env, where="some"), weights.parent) != key


def test_another_setting_has_a_file_of_its_own() -> None:
    manner = Manner(
        model="m", format="react", split="test", level=None, seed=0, temperature=None, max_reply_tokens=9,
        max_turns=None, form="episodes",
    )  # fmt: skip
    tables: list[dict[str, Any]] = [
        {"name": "maze"}, {"name": "maze", "options": {"size": 5}}, {"name": "maze", "tasks": "benchmark"},
        {"name": "maze", "format": {"use": "react", "strict": True}}, {"name": "maze", "episodes": 5, "label": "again"},
    ]  # fmt: skip

    found = [setting_of(suite_of(table).environments[0], manner) for table in tables]

    assert len(set(found)) == 4
    assert found[-1] == found[0], "more episodes, or another title, are the same setting"
    assert setting_of(suite_of(tables[0]).environments[0], replace(manner, seed=1)) not in found


def test_a_damaged_file_of_results_is_named(tmp_path: Path) -> None:
    (tmp_path / "some.json").write_text("[{}]")

    with pytest.raises(CliError, match=r"some\.json cannot be read; remove it to measure anew"):
        Results(tmp_path / "some.json")


def shown(suite: Suite, titles: list[str], figures: list[Figure], failed: dict[str, str]) -> str:
    stages = [Stage(title, Path("model")) for title in titles]
    with out.capture() as captured:
        print_table(suite, stages, {(one.environment, one.stage): one for one in figures}, failed)
    return captured.get()


def test_table_shows_gains_and_the_overall_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 160)
    suite = suite_of({"name": "maze", "reference": 20.0}, {"name": "wordle", "reference": 40.0})
    figures = [
        figure("maze", "base", 0.1), figure("wordle", "base", 0.2),
        figure("maze", "+ sft", 0.4), figure("wordle", "+ sft", 0.6),
    ]  # fmt: skip

    text = shown(suite, ["base", "+ sft"], figures, {})

    assert "+30.0 points" in text
    assert "+40.0 points" in text
    overall = next(line for line in text.splitlines() if "overall" in line)
    assert [word for word in overall.split() if "." in word] == ["0.50", "1.75", "+1.25"]


def test_without_one_figure_there_is_no_overall_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out, "width", 160)
    suite = suite_of({"name": "maze", "reference": 20.0}, {"name": "wordle", "reference": 40.0})

    text = shown(suite, ["base"], [figure("maze", "base", 0.1)], {"wordle": "env-wordle failed: no words"})

    assert "overall" not in text
    assert "wordle: not measured: env-wordle failed: no words" in text
