"""Playing while training: the waits of the environment, and what is told of the runs."""

import time
from statistics import median

import pytest
from gymfleet_envs.babyai.tasks import BabyAITask

from benchmarks.bench_async import Run, rows
from benchmarks.waiting_environment import SLOW_Z, Waiting, slowness

TASKS = [BabyAITask("GoToRedBall", seed) for seed in range(4000)]


def test_each_task_has_a_length_of_its_own_and_a_tenth_is_slow() -> None:
    lengths = [slowness(task) for task in TASKS]

    assert lengths == [slowness(task) for task in TASKS]
    assert median(lengths) == pytest.approx(0.0, abs=0.05)
    assert sum(length > SLOW_Z for length in lengths) / len(lengths) == pytest.approx(0.1, abs=0.015)


def test_a_step_waits_and_says_whether_its_task_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    slow, fast = max(TASKS, key=slowness), min(TASKS, key=slowness)

    told = []
    for task in (slow, fast):
        world = Waiting()
        world.reset(task, 0)
        told.append(world.step("turn left").info["slow"])

    assert told == [True, False]
    assert waits[0] > 10 * Waiting.options.median_s
    assert waits[1] < Waiting.options.median_s / 10


def test_the_others_are_compared_with_the_first() -> None:
    run = Run(samples_per_s=10.0, before=0.2, after=0.5, passed_over=0.0, slow=0.1, staleness=0.0)
    faster = Run(samples_per_s=16.0, before=0.2, after=0.5, passed_over=0.03, slow=0.1, staleness=1.0)

    found = {row.name: row for row in rows({0: [run], 1: [faster]})}

    assert found["max_staleness = 1: speed-up"].value == 1.6
    assert found["max_staleness = 1: speed-up"].met
    assert found["max_staleness = 1: groups passed over"].met is False
    assert "max_staleness = 0: speed-up" not in found
