"""Two workers under a real Ray Train: as one process, with a critic too, also when one of them dies in between."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_contracts.recipe import Recipe
from gymfleet_trainer.distributed.ray_settings import prepare_ray
from gymfleet_trainer.errors import WorkersFailed, WorkersLost
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.settings import TrainerSettings

from tests.fixtures.paths import ROOT
from tests.fixtures.scored import make_recipe
from tests.fixtures.trainer_ranks import Work, learn, teach
from tests.fleet import clean_environment
from tests.integration.test_trainer_distributed import (
    PPO,
    RL,
    SFT,
    assert_agree,
    assert_metrics_agree,
    assert_same_state,
    updater,
    weights,
)

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

_TIMEOUT_S: Final = 400.0


def recipe_of(workers: int) -> Recipe:
    return make_recipe(
        rl={**RL, "kl": {"coefficient": 0.1}, "updates_per_step": 2}, sft=SFT,
        trainer={"workers": workers, "max_failures": 1},
    )  # fmt: skip


def ppo_recipe_of(workers: int) -> Recipe:
    return make_recipe(rl=PPO, trainer={"workers": workers, "max_failures": 1})


def main(model: Path, directory: Path) -> dict[str, Any]:
    """Half of the work; a worker dies; the other half; work with a critic; another dies, which is one too many."""
    import psutil  # noqa: PLC0415
    from gymfleet_trainer.distributed.remote import RemoteLearner  # noqa: PLC0415 - Ray has been prepared by now
    from gymfleet_trainer.distributed.workers import ray_workers  # noqa: PLC0415

    recipe = recipe_of(2)
    first = Work(recipe, model, directory / "first", sft_epochs=range(2), steps=range(2))
    rest = Work(recipe, model, directory / "rest", steps=range(2, 3), resume=first.directory / "checkpoint")
    ppo_first, ppo_rest = ppo_works(2, model, directory / "ppo-together", directory / "ppo-alone")
    for work in (first, rest, ppo_first, ppo_rest):
        (work.directory / "checkpoint").mkdir(parents=True)

    def kill_a_worker() -> None:
        workers = [p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::RayTrain")]
        max(workers, key=lambda process: process.pid).kill()

    said: dict[str, Any] = {}
    with ray_workers(recipe, TrainerSettings(services_timeout_s=_TIMEOUT_S), RunDirectory(directory)) as workers:
        learner = workers.learner(recipe, str(model), directory / "reference")
        said["first"] = teach(learner, first)
        (directory / "a file").touch()
        try:
            learner.save_checkpoint(directory / "a file" / "checkpoint")
        except OSError as error:
            said["refused"] = error.strerror
        kill_a_worker()
        try:
            learner.sampled_logprobs([[5, 6]], [[7]])
        except WorkersLost:
            learner = workers.learner(recipe, str(model), directory / "reference")
        said["rest"] = teach(learner, rest)
        # The same group, which has a new learner made: Ray takes too long to start for another.
        learner = RemoteLearner(workers._broker, workers._group, ppo_first.recipe, str(model), directory / "unused")
        said["ppo first"] = teach(learner, ppo_first)
        said["ppo rest"] = teach(learner, ppo_rest)
        kill_a_worker()
        try:
            learner.sampled_logprobs([[5, 6]], [[7]])
        except WorkersFailed as error:
            said["failed"] = f"{type(error).__name__}: {error}"
    said["left"] = [process.name() for process in psutil.Process().children(recursive=True)]
    return said


def ppo_works(workers: int, model: Path, own: Path, other: Path) -> tuple[Work, Work]:
    """Two steps from the start, and a third on the checkpoint that `other` made of its first two."""
    recipe = ppo_recipe_of(workers)
    first = Work(recipe, model, own / "first", steps=range(2))
    return first, Work(recipe, model, own / "rest", steps=range(2, 3), resume=other / "first" / "checkpoint")


@dataclass(frozen=True)
class Session:
    """What one start of Ray did, and the directory where it did it."""

    said: dict[str, Any]
    directory: Path
    ppo_alone: list[dict[str, Any]]
    """Metrics of the two steps that one process made for the workers to go on from."""


@pytest.fixture(scope="module")
def session(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    directory = tmp_path_factory.mktemp("ray")
    ppo_first, _ = ppo_works(1, tiny_model, directory / "ppo-alone", directory / "ppo-together")
    ppo_alone = learn(None, ppo_first)
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.test_trainer_distributed_ray", str(tiny_model), str(directory)],
        env=clean_environment(), cwd=ROOT, capture_output=True, text=True,
        timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return Session(json.loads((directory / "said.json").read_text()), directory, ppo_alone)


def test_two_ray_workers_train_as_one_process_and_survive_a_death(
    session: Session, tiny_model: Path, tmp_path: Path
) -> None:
    alone = Work(recipe_of(1), tiny_model, tmp_path / "alone", sft_epochs=range(2), steps=range(3))

    expected = learn(None, alone)

    said = session.said
    assert_metrics_agree(expected, said["first"] + said["rest"])
    assert_agree(weights(alone.directory), weights(session.directory / "rest"))
    assert said["refused"] == "Not a directory", "what the first rank could not write is the caller's"
    assert said["failed"].startswith("WorkersFailed: the training workers died too often (trainer.max_failures)")
    assert said["left"] == []


def test_two_ray_workers_train_a_critic_as_one_process_and_each_goes_on_from_the_other(
    session: Session, tiny_model: Path, tmp_path: Path
) -> None:
    through = Work(ppo_recipe_of(1), tiny_model, tmp_path / "through", steps=range(3))
    _, rest = ppo_works(1, tiny_model, tmp_path / "ppo-alone", session.directory / "ppo-together")

    expected = learn(None, through)
    resumed_by_one = learn(None, rest)

    assert_metrics_agree(expected, session.ppo_alone + session.said["ppo rest"])
    assert_metrics_agree(expected, session.said["ppo first"] + resumed_by_one)
    for directory in (session.directory / "ppo-together" / "rest", rest.directory):
        assert any(name.startswith("critic.") for name in weights(directory))
        assert_agree(weights(through.directory), weights(directory))
        assert_same_state(updater(through.directory), updater(directory))


if __name__ == "__main__":
    prepare_ray()
    result = main(Path(sys.argv[1]), Path(sys.argv[2]))
    (Path(sys.argv[2]) / "said.json").write_text(json.dumps(result))
    os._exit(0)  # as the trainer does: Ray's own farewell waits for processes that are gone
