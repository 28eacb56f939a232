"""The arithmetic of capacity, worked out by hand, and the page that shows it."""

from dataclasses import replace
from pathlib import Path

import pytest
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_trainer.run.plan import _MAX_HELD

from benchmarks.capacity import as_text, load_of, main
from benchmarks.capacity_assumptions import Device, Model
from benchmarks.capacity_costs import Costs
from benchmarks.capacity_page import LOADS
from benchmarks.capacity_plan import (
    MAX_EPISODES,
    MAX_OPEN_PER_RUN,
    MAX_SESSIONS,
    Load,
    Need,
    Plan,
    plan,
)
from benchmarks.tables import CAPACITY_PAGE, with_capacity

COSTS = Costs(
    gateway_step_s=1e-4,
    front_step_s=2e-5,
    redis_step_s=2e-5,
    rollout_step_s=2e-4,
    reward_trajectory_s=1e-3,
    redis_trajectory_s=2e-4,
    env_step_s=0.4,
    env_session=1e6,
    env_rest=1e8,
    service_rest={"gateway": 1e8, "rollout": 2e8, "reward": 7e7, "redis": 1e7},
    redis_session=500,
    redis_step=40,
    redis_trajectory_token=10,
    file_step=300,
    file_trajectory_token=20,
    wire_step=250,
)
LOAD = Load(100, "x", turns=10, prompt_tokens=100, observation_tokens=50, reply_tokens=40)
MODEL = Model(parameters=1e9, kv_token=1e5)
DEVICE = Device(memory=1e10, bandwidth=1e12, flops=1e15, bandwidth_share=0.5, flops_share=0.5)


def need(name: str, one: Plan) -> Need:
    return next(need for need in one.needs if need.name == name)


def test_lengths_of_an_episode() -> None:
    assert LOAD.tokens == 100 + 10 * (50 + 40) == 1000
    assert LOAD.mean_context == 100 + 10 * 90 / 2 == 550


def test_pace() -> None:
    one = plan(LOAD, COSTS, MODEL, DEVICE)

    # 2 GB of weights and 100 caches of 550 tokens x 100 kB, read 40 times at 0.5 TB/s: 0.6 s; and 0.4 s in the env.
    assert one.turn_s == pytest.approx(1.0)
    assert one.steps_per_s == pytest.approx(100.0)
    assert one.trajectories_per_s == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("name", "cores", "memory", "replicas", "full_at"),
    [
        pytest.param("env shard", 40.0, 1e8, 67, 1.5, id="env shard: 0.6 s of a core per second over 0.4 s"),
        pytest.param("env server", 0.002, 1e8, 1, 4096, id="env server: its limit of sessions before its core"),
        pytest.param("gateway", 0.01, 1e8, 1, 6000, id="gateway: 0.6 over 100 us"),
        pytest.param("rollout", 0.02, 2e8, 1, 512, id="rollout: its limit of episodes before its core"),
        pytest.param("reward", 0.01, 7e7, 1, 6000, id="reward: 1 ms per 10 turns"),
        pytest.param("Redis", 0.004, 1e7 + 100 * (500 + 200 + 10_000), 1, 15_000, id="Redis: 20 us and 200 us per 10"),
        pytest.param("engine (GPU)", 0.0, 0.0, 1, 7e9 / 5.5e7, id="engine: 7 GB over 55 MB"),
        pytest.param("trainer (GPU)", 0.0, 0.0, 1, 500, id="trainer: 10,000 tokens/s x 6 GFLOP of 300 TFLOP/s"),
        pytest.param("run", 0.0, 0.0, 1, 8000, id="run: what a trainer holds"),
    ],
)
def test_what_a_hundred_episodes_need(name: str, cores: float, memory: float, replicas: int, full_at: float) -> None:
    found = need(name, plan(LOAD, COSTS, MODEL, DEVICE))

    assert found.cores == pytest.approx(cores)
    assert found.memory == pytest.approx(memory)
    assert found.replicas == replicas
    assert found.full_at == pytest.approx(full_at)


def test_what_redis_writes_and_moves() -> None:
    one = plan(LOAD, COSTS, MODEL, DEVICE)

    assert one.redis_write == pytest.approx(100 * 300 + 10_000 * 20)
    assert one.redis_wire == pytest.approx(100 * 250 + 2 * 10_000 * 20)


def test_walls_stand_in_order_and_redis_has_no_second_replica() -> None:
    one = plan(replace(LOAD, episodes=100_000), COSTS, MODEL, DEVICE)

    assert [wall.name for wall in one.walls][:2] == ["env shard", "engine (GPU)"]
    assert need("Redis", one).replicas == 1
    assert need("Redis", one).full_at < 100_000


def test_a_second_engine_when_the_first_is_full() -> None:
    assert need("engine (GPU)", plan(replace(LOAD, episodes=127), COSTS, MODEL, DEVICE)).replicas == 1
    assert need("engine (GPU)", plan(replace(LOAD, episodes=128), COSTS, MODEL, DEVICE)).replicas == 2


def test_limits_are_those_of_the_code() -> None:
    assert MAX_OPEN_PER_RUN == _MAX_HELD
    assert EnvServerSettings.model_fields["max_sessions"].default == MAX_SESSIONS
    assert RolloutSettings.model_fields["max_episodes"].default == MAX_EPISODES


@pytest.mark.parametrize("env", sorted(LOADS))
def test_measured_costs_are_all_there(env: str) -> None:
    one = plan(replace(LOADS[env], episodes=100), Costs.measured(env))

    assert all(need.full_at > 0 for need in one.needs)
    assert all(need.cores > 0 and need.memory > 0 for need in one.needs[:6])
    assert f"100 episodes of {env}" in as_text(one)


def test_a_recipe_gives_its_limits() -> None:
    load = load_of(Path("recipes/quickstart.toml"), 256)

    assert (load.env, load.episodes, load.turns, load.reply_tokens) == ("babyai", 256, 4, 32)


def test_the_command_prints_a_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["capacity", "--episodes", "10000", "--env", "sciworld", "--turns", "30"])

    main()

    assert "10,000 episodes of sciworld, 30 turns of 80 tokens" in capsys.readouterr().out


def test_the_page_has_the_tables_of_the_results() -> None:
    page = CAPACITY_PAGE.read_text(encoding="utf-8")

    assert page == with_capacity(page), "run: python -m benchmarks.tables"
