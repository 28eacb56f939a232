"""The comparison of methods: every method in every setting is a recipe, and figures are those of its runs."""

import json
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from subprocess import CalledProcessError
from threading import Barrier
from typing import Any

import pytest
from gymfleet_cli.recipes import load_with_overrides

from benchmarks import bench_methods
from benchmarks import record as recording
from benchmarks.bench_methods import (
    CHOSEN,
    RECIPES,
    SETTINGS,
    SHORT,
    Run,
    _of_the_environment,
    _recipe_of,
    keep,
    methods,
    on_processors,
    published,
    rows,
    scaled,
    spent_by,
)

METHODS = methods()


def arguments(**changes: Any) -> Namespace:
    return Namespace(**{"setting": "intro", "share": 1.0, "eval_tasks": 400, "every": 64, "at_once": 1, **changes})


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_in_a_setting_is_a_recipe(name: str, setting: str) -> None:
    given = arguments(setting=setting, share=0.1, eval_tasks=7)
    changes = [*SETTINGS[setting], *scaled(METHODS[name], given), "environments.babyai.eval_split=validation"]

    recipe = load_with_overrides(RECIPES / f"{name}.toml", [_of_the_environment(one, given) for one in changes])

    share = 0.1 if setting == "intro" else 0.24
    (environment,) = recipe.environments
    assert environment.name == ("babyai" if setting == "intro" else setting)
    assert environment.eval_split == "validation"
    for stage in recipe.plan():
        if stage.kind == "measure":
            assert stage.options["num_tasks"] == 7
        if stage.kind == "reinforce":
            whole = next(one for one in METHODS[name].plan() if one.name == stage.name).options["max_env_steps"]
            assert stage.options["max_env_steps"] == round(share * whole)
            if stage.name == stage.title:  # figures on the way are of one stage, and not of rounds
                assert stage.options["measure"] == {
                    "every_steps": 64 // stage.options["groups_per_step"],
                    "num_tasks": 7,
                }
        if stage.kind == "collect" and stage.name != "demonstrations":
            whole = next(one for one in METHODS[name].plan() if one.name == stage.name).options
            for key in ("num_tasks", "max_env_steps"):
                assert stage.options[key] == round(share * whole[key])


def test_without_measurements_on_the_way_there_are_none() -> None:
    changes = scaled(METHODS["grpo"], arguments(every=0))

    assert changes == [
        "stages.before.num_tasks=400", "stages.after.num_tasks=400", "stages.reinforce.max_env_steps=4000",
    ]  # fmt: skip


def test_seconds_are_those_of_stages_that_learn() -> None:
    recipe = METHODS["iterative_dpo"]
    seconds = {"before": 1.0, "iterative_dpo1.collect": 2.0, "iterative_dpo2.preference": 4.0, "after": 8.0}
    with_demonstrations = METHODS["agent_evol"]

    assert spent_by(recipe, seconds, {"collect"}) == 2.0
    assert spent_by(recipe, seconds, {"preference", "sft"}) == 4.0
    assert spent_by(with_demonstrations, {"demonstrations": 1.0, "agent_evol1.collect": 2.0}, {"collect"}) == 2.0


def test_runs_that_share_the_machine_have_as_much_more_time() -> None:
    assert "stages.reinforce.max_wall_s=300" in scaled(METHODS["grpo"], arguments(at_once=2))
    assert "stages.reward_refresh.stages.reinforce.max_wall_s=100" in scaled(
        METHODS["reward_refresh"], arguments(at_once=2)
    )


def test_runs_that_take_more_steps_have_as_much_more_time() -> None:
    assert "stages.reinforce.max_wall_s=360" in scaled(METHODS["grpo"], arguments(setting="maze"))
    assert not any("max_wall_s" in change for change in scaled(METHODS["grpo"], arguments(share=0.3)))


def test_jobs_at_once_have_processors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3, 5})
    both = Barrier(2, timeout=10)
    seen: dict[str, tuple[int, ...]] = {}

    def work(job: str, processors: tuple[int, ...]) -> None:
        both.wait()
        seen[job] = processors

    on_processors(work, ["a", "b", "c", "d"], 2)

    assert set(seen) == {"a", "b", "c", "d"}
    assert set(seen.values()) == {(0, 2, 5), (1, 3)}
    for at_once in (0, 6):
        with pytest.raises(SystemExit, match=f"--at-once {at_once}: there are 5 processors"):
            on_processors(work, ["a"], at_once)


def test_a_job_that_fails_ends_the_others_before_they_begin() -> None:
    begun: list[int] = []

    def work(job: int, _: tuple[int, ...]) -> None:
        begun.append(job)
        raise ValueError(str(job))

    with pytest.raises(ValueError, match="0"):
        on_processors(work, range(50), 1)

    assert len(begun) < 50


def test_those_that_are_named_beforehand_are_eight() -> None:
    assert len(set(CHOSEN)) == 8
    assert set(SHORT) <= set(METHODS)


def run(method: str, seed: int, success: float, recipe: str = "abc") -> Run:
    return Run(
        setting="intro", method=method, seed=seed, commit="d00d", recipe=recipe, success_before=0.25, success=success,
        interval=(success - 0.05, success + 0.05), env_steps=10_000 + 10 * seed, tokens_trained=5,
        collecting_s=30.0, training_s=20.0, total_s=90.0, memory_mib=100.0 + seed, processors=1, curve=((0, 0.25),),
    )  # fmt: skip


def test_published_runs_count_as_long_as_their_recipes_have_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "methods.json"
    assert published(path) == []
    runs = [run("grpo", 0, 0.5, _recipe_of("grpo")), run("rloo", 0, 0.5), run("no_such", 0, 0.5)]
    path.write_text(json.dumps({"runs": [asdict(one) for one in runs]}), encoding="utf-8")

    assert published(path) == runs[:1]

    begun = tmp_path / "begun" / "methods.json"
    others = [run("grpo", 0, 0.9, _recipe_of("grpo")), run("grpo", 1, 0.6, _recipe_of("grpo"))]
    keep(others, begun)
    assert published(path, begun) == [runs[0], others[1]], "what is published counts first"


def test_what_is_not_complete_is_kept_until_the_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[tuple[str, int]] = []
    directory, begun, failing = tmp_path / "results", tmp_path / "results" / "begun" / "methods.json", {"rloo"}

    def run_of(name: str, seed: int, *_: Any) -> Run:
        if name in failing:
            raise CalledProcessError(1, "gymfleet train")
        played.append((name, seed))
        return run(name, seed, 0.5, _recipe_of(name))

    monkeypatch.setattr(recording, "RESULTS", directory)
    monkeypatch.setattr(bench_methods, "RESULTS", directory)
    monkeypatch.setattr(bench_methods, "methods", lambda: {name: METHODS[name] for name in ("grpo", "rloo")})
    monkeypatch.setattr(bench_methods, "uncommitted", lambda: "")
    monkeypatch.setattr(bench_methods, "warm_start", lambda *_: None)
    monkeypatch.setattr(bench_methods, "run_of", run_of)
    monkeypatch.setattr("sys.argv", ["bench_methods", "--publish"])

    bench_methods.main()
    assert [(one["method"], one["seed"]) for one in json.loads(begun.read_text())["runs"]] == played
    assert "3 runs are kept" in (said := capsys.readouterr().out)
    assert "with the other 3 all are published" in said
    assert not (directory / "methods.json").exists()

    failing.clear()
    bench_methods.main()
    assert played == [(name, seed) for name in ("grpo", "rloo") for seed in (0, 1, 2)], "none is run twice"
    assert len(json.loads((directory / "methods.json").read_text())["runs"]) == 6
    assert not begun.exists()


def test_the_figures_of_a_method_are_those_of_its_seeds_and_methods_are_not_ranked() -> None:
    found = {row.name: row.value for row in rows([run("b", 0, 0.5), run("a", 0, 0.25), run("b", 1, 0.75)])}

    assert [name.partition(":")[0] for name in found] == ["a"] * 9 + ["b"] * 9, "by name"
    assert found["b: success, mean of 2 seeds"] == 0.625
    assert found["b: lowest lower end of the intervals"] == 0.45
    assert found["b: highest upper end of the intervals"] == 0.8
    assert found["b: environment steps"] == 10_005
    assert found["b: memory of the largest process"] == 101
