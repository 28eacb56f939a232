"""What Prometheus is told of a run's progress."""

import math
import shutil
from pathlib import Path

import pytest
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.run_directory import RunDirectory
from prometheus_client import REGISTRY

STAMP = "gymfleet_trainer_progress_timestamp_seconds"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])
    return now


def test_waiting_for_the_same_thing_is_no_progress(tmp_path: Path, clock: list[float]) -> None:
    reporter = Reporter(RunDirectory(tmp_path), "r")
    seen = [REGISTRY.get_sample_value(STAMP)]

    for step, message in ((0, "waiting for redis"), (0, "waiting for redis"), (0, "waiting for rollout"), (1, "")):
        clock[0] += 100
        reporter.advance(step, message)
        seen.append(REGISTRY.get_sample_value(STAMP))

    assert seen == [1000, 1100, 1100, 1300, 1400]


def test_the_disk_is_measured_when_it_is_asked_for(tmp_path: Path) -> None:
    Reporter(RunDirectory(tmp_path), "r")

    assert REGISTRY.get_sample_value("gymfleet_trainer_disk_size_bytes") == shutil.disk_usage(tmp_path).total
    free = REGISTRY.get_sample_value("gymfleet_trainer_disk_free_bytes")
    assert free is not None
    assert 0 < free <= shutil.disk_usage(tmp_path).total


def test_a_disk_that_is_gone_costs_no_other_metric(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    Reporter(RunDirectory(path), "r")
    shutil.rmtree(path)

    assert math.isnan(REGISTRY.get_sample_value("gymfleet_trainer_disk_free_bytes") or 0.0)
