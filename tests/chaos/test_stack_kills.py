"""`gymfleet train` while one process of every kind is killed: the run goes on to its end and the books are right."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from gymfleet_contracts.recipe import load_recipe

from benchmarks.bench_stack import ordeal, schedule, training
from benchmarks.stack_accounts import Accounts
from benchmarks.stacks import Kind, LocalFleet
from tests.fixtures.trainer_runs import RECIPE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

KILLS: Final[Mapping[Kind, int]] = dict.fromkeys(Kind, 1)
WINDOW_S: Final = 42.0
RL_S: Final = 55
"""Longer than the window by what the last recovery takes."""


def test_a_schedule_is_drawn_from_its_seed_alone() -> None:
    plan = schedule({Kind.REDIS: 1, Kind.REWARD: 3}, 80.0, seed=7)

    assert plan == schedule({Kind.REDIS: 1, Kind.REWARD: 3}, 80.0, seed=7)
    assert plan != schedule({Kind.REDIS: 1, Kind.REWARD: 3}, 80.0, seed=8)
    assert sorted(entry.kind for entry in plan) == [Kind.REDIS, Kind.REWARD, Kind.REWARD, Kind.REWARD]
    for place, entry in enumerate(plan):
        assert 20 * place <= entry.at_s <= 20 * place + 10, "one in the first half of each part"


async def test_one_kill_of_every_kind(tiny_model: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    text = RECIPE.format(
        model=tiny_model, steps=2000, max_staleness=0, learning_rate=1e-4, more="", sft="[sft]\nnum_demonstrations = 8"
    )
    recipe.write_text(text, encoding="utf-8")
    run_dir = tmp_path / "run"
    plan = schedule(KILLS, WINDOW_S, seed=0)
    fleet = LocalFleet(run_dir, "maze")

    with training(recipe, run_dir, [f"rl.max_wall_s={RL_S}"]) as process:
        seen = await ordeal(fleet, load_recipe(recipe), plan, process)

    assert process.returncode == 0, run_dir.with_suffix(".log").read_text(encoding="utf-8")[-2000:]
    accounts = Accounts.of(run_dir, seen.signs.produced)
    assert {one.kill for one in seen.recoveries} == set(plan)
    assert all(one.works_s < float("inf") for one in seen.recoveries), seen.recoveries
    assert accounts.faults == dict.fromkeys(accounts.faults, 0)
    assert accounts.resumed >= 1, "the trainer was killed"
    assert accounts.trained > 0
    assert seen.signs.dead == 0
    assert seen.restarts == len([kill for kill in plan if kill.kind is not Kind.ENV_SHARD])
    assert accounts.after["interval"][1] >= accounts.before["interval"][0], "not worse beyond chance"
