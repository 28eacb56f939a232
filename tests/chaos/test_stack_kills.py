"""`gymfleet train` while one process of every kind is killed: the run goes on to its end and the books are right."""

from pathlib import Path

import pytest

from benchmarks.bench_stack import Ordeal
from benchmarks.stack_accounts import Accounts
from benchmarks.stack_schedule import schedule
from benchmarks.stacks import Kind
from tests.fixtures import preloaded
from tests.fixtures.benchmarks import smoke
from tests.fixtures.trainer_runs import RECIPE, WARM_START

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_a_schedule_is_drawn_from_its_seed_alone() -> None:
    plan = schedule({Kind.REDIS: 1, Kind.REWARD: 3}, 80.0, seed=7)

    assert plan == schedule({Kind.REDIS: 1, Kind.REWARD: 3}, 80.0, seed=7)
    assert plan != schedule({Kind.REDIS: 1, Kind.REWARD: 3}, 80.0, seed=8)
    assert sorted(entry.kind for entry in plan) == [Kind.REDIS, Kind.REWARD, Kind.REWARD, Kind.REWARD]
    for place, entry in enumerate(plan):
        assert 20 * place <= entry.at_s <= 20 * place + 10, "one in the first half of each part"


def test_one_kill_of_every_kind(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in preloaded.of_command_lines(but=["gymfleet-env-server"]).items():  # its shards are looked for
        monkeypatch.setenv(name, value)
    recipe = tmp_path / "tiny.toml"
    text = RECIPE.format(
        model=tiny_model,
        algorithm="grpo",
        options="",
        steps=2000,
        max_staleness=0,
        learning_rate=1e-4,
        schedule="constant",
        more="",
        inference="",
        sft=WARM_START,
    )
    recipe.write_text(text, encoding="utf-8")
    run_dir = tmp_path / "run"

    printed = smoke("stack", "--recipe", str(recipe), "--run-dir", str(run_dir), "--seed", "0")

    seen = Ordeal.model_validate_json(run_dir.with_suffix(".ordeal.json").read_bytes())
    accounts = Accounts.of(run_dir, seen.signs.produced)
    assert {one.kill.kind for one in seen.recoveries} == set(Kind)
    assert all(one.works_s < float("inf") for one in seen.recoveries), seen.recoveries
    assert accounts.faults == dict.fromkeys(accounts.faults, 0)
    assert accounts.resumed >= 1, "the trainer was killed"
    assert accounts.trained > 0
    assert seen.signs.dead == 0
    assert seen.restarts == len(Kind) - 1, "all but the shard, which its own server starts again"
    assert accounts.after["interval"][1] >= accounts.before["interval"][0], "not worse beyond chance"
    assert "recoveries within the goal" in printed
