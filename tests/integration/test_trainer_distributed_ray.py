"""Two workers under a real Ray Train: as one process, also when one of them dies in between."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.recipe import Recipe
from gymfleet_trainer.errors import WorkersFailed, WorkersLost
from gymfleet_trainer.ray_settings import prepare_ray
from gymfleet_trainer.record import RunDirectory
from gymfleet_trainer.settings import TrainerSettings

from tests.fixtures.scored import make_recipe
from tests.fixtures.trainer_ranks import Work, learn, teach
from tests.fleet import clean_environment
from tests.integration.test_trainer_distributed import RL, SFT, assert_agree, assert_metrics_agree, weights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_TIMEOUT_S: Final = 400.0


def recipe_of(workers: int) -> Recipe:
    return make_recipe(
        rl={**RL, "kl": {"coefficient": 0.1}, "updates_per_step": 2}, sft=SFT,
        trainer={"workers": workers, "max_failures": 1},
    )  # fmt: skip


def main(model: Path, directory: Path) -> dict[str, Any]:
    """Half of the work; a worker dies; the other half; another dies, which is one too many."""
    import psutil  # noqa: PLC0415
    from gymfleet_trainer.workers import ray_workers  # noqa: PLC0415 - Ray has been prepared by now

    recipe = recipe_of(2)
    first = Work(recipe, model, directory / "first", sft_epochs=range(2), steps=range(2))
    rest = Work(recipe, model, directory / "rest", steps=range(2, 3), resume=first.directory / "checkpoint")
    for work in (first, rest):
        (work.directory / "checkpoint").mkdir(parents=True)

    def kill_a_worker() -> None:
        workers = [p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::RayTrain")]
        max(workers, key=lambda process: process.pid).kill()

    said: dict[str, Any] = {}
    with ray_workers(recipe, TrainerSettings(services_timeout_s=_TIMEOUT_S), RunDirectory(directory)) as workers:
        learner = workers.learner(recipe, str(model), directory / "reference")
        said["first"] = teach(learner, first)
        try:
            learner.save_checkpoint(directory / "nowhere")
        except OSError as error:
            said["refused"] = error.strerror
        kill_a_worker()
        try:
            learner.sampled_logprobs([[5, 6]], [[7]])
        except WorkersLost:
            learner = workers.learner(recipe, str(model), directory / "reference")
        said["rest"] = teach(learner, rest)
        kill_a_worker()
        try:
            learner.sampled_logprobs([[5, 6]], [[7]])
        except WorkersFailed as error:
            said["failed"] = f"{type(error).__name__}: {error}"
    said["left"] = [process.name() for process in psutil.Process().children(recursive=True)]
    return said


def test_two_ray_workers_train_as_one_process_and_survive_a_death(tiny_model: Path, tmp_path: Path) -> None:
    alone = Work(recipe_of(1), tiny_model, tmp_path / "alone", sft_epochs=range(2), steps=range(3))

    expected = learn(None, alone)
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.test_trainer_distributed_ray", str(tiny_model), str(tmp_path)],
        env=clean_environment(), cwd=Path(__file__).parents[2], capture_output=True, text=True,
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    assert_metrics_agree(expected, said["first"] + said["rest"])
    assert_agree(weights(alone.directory), weights(tmp_path / "rest"))
    assert said["refused"] == "No such file or directory", "what the first rank could not write is the caller's"
    assert said["failed"].startswith("WorkersFailed: the training workers died too often (trainer.max_failures)")
    assert said["left"] == []


if __name__ == "__main__":
    prepare_ray()
    result = main(Path(sys.argv[1]), Path(sys.argv[2]))
    (Path(sys.argv[2]) / "said.json").write_text(json.dumps(result))
    os._exit(0)  # as the trainer does: Ray's own farewell waits for processes that are gone
