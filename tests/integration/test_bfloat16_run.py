"""A run whose engine computes in bfloat16 and whose trainer holds float32: what is tolerated, published and kept."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gymfleet_kit.run_events import read_events
from gymfleet_trainer.run.checkpoint import Checkpoints
from safetensors.torch import load_file

from tests.fixtures.trainer_runs import TrainerRun
from tests.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def bfloat16_fleet(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Fleet]:
    settings = {"LEASE_S": "3", "DTYPE": "bfloat16"}
    with Fleet(tmp_path_factory.mktemp("fleet"), tiny_model, rollout=settings) as fleet:
        yield fleet


def dtypes(directory: Path) -> set[torch.dtype]:
    return {value.dtype for value in load_file(directory / "model.safetensors").values()}


def test_a_bfloat16_engine_is_trained_with(bfloat16_fleet: Fleet, tiny_model: Path, tmp_path: Path) -> None:
    run = TrainerRun(bfloat16_fleet, tmp_path, tiny_model, steps=2, inference='dtype = "bfloat16"')

    summary = run.finish()

    assert summary["steps"] == 2
    assert summary["inference"]["dtype"] == "bfloat16"
    assert 0 < summary["parity_mean_abs"] <= 0.1
    (line,) = run.metrics("parity_tolerance")
    first, *others = run.metrics("batch_parity")
    assert line["mean_abs"] == first["mean_abs"]
    assert others, "later batches are held to it"
    assert line["tolerance"] == summary["parity_tolerance"] == max(0.01, 3 * first["mean_abs"]) <= 0.1
    assert [
        event.data["tolerance"] for event in read_events(run.run_dir, 0, 10_000) if event.kind == "parity_tolerance"
    ] == [line["tolerance"]]
    latest = Checkpoints(run.run_dir / "checkpoints", keep=2).latest()
    assert latest is not None
    path, state = latest
    assert state.parity_tolerance == line["tolerance"], "a resumed run has it from there"
    assert dtypes(path / "model") == dtypes(run.run_dir / "model") == {torch.float32}
    published = max((run.run_dir / "weights").glob("v*"))
    assert dtypes(published) == {torch.bfloat16}
    assert json.loads((published / "config.json").read_text())["dtype"] == "bfloat16"


def test_a_tolerance_of_float32_ends_the_run_before_it_begins(
    bfloat16_fleet: Fleet, tiny_model: Path, tmp_path: Path
) -> None:
    run = TrainerRun(bfloat16_fleet, tmp_path, tiny_model, inference='dtype = "bfloat16"')
    run.recipe.write_text(run.recipe.read_text().replace("[publish]", "[publish]\nparity_tolerance = 0.001"))

    run.start()

    assert run.wait() == 2
    (told,) = [line for line in run.log.read_text().splitlines() if "parity_tolerance" in line]
    assert 'inference.dtype is "bfloat16"' in told
    assert not run.run_dir.exists() or not list(run.run_dir.glob("trajectories/*"))
