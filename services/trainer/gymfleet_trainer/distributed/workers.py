"""Start the workers of a run under Ray Train, restart them when one dies, and end them."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil
import ray
import structlog
from gymfleet_contracts.recipe import Recipe
from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
from ray.train.torch import TorchConfig, TorchTrainer

from gymfleet_trainer.distributed.call_broker import CallBroker
from gymfleet_trainer.distributed.ray_settings import ADDRESS
from gymfleet_trainer.distributed.remote import RemoteLearner, WorkerConfig, next_group, serve
from gymfleet_trainer.errors import WorkersFailed
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.settings import TrainerSettings

log = structlog.get_logger()

_PATIENCE_S: Final = 2.0
_INTERRUPTED: Final = 128
_OBJECT_STORE_BYTES: Final = 512 << 20
"""The store holds a batch of trajectories once for all workers of a node; the rest is spilled to disk."""


class _LocalTrainer(TorchTrainer):
    """A trainer without the actor that cleans up after a dead driver: a local cluster dies with its driver.

    The actor would ask for the dashboard every second, and log that there is none.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()  # type: ignore[misc]  # mypy sees the older class
        return [callback for callback in callbacks if type(callback).__name__ != "PlacementGroupCleanerCallback"]


class RayWorkers:
    """A group of workers that Ray Train keeps alive, with a new learner each time the group is restarted."""

    def __init__(self, recipe: Recipe, settings: TrainerSettings, directory: RunDirectory, *, local: bool) -> None:
        """Start the workers in the Ray cluster of this process; `local` if the cluster is this machine alone."""
        self._workers = recipe.trainer.workers
        self._timeout_s = settings.services_timeout_s
        self._group = 0
        self._broker: Any = ray.remote(CallBroker).options(num_cpus=0).remote()
        threads = max(1, settings.torch_threads // self._workers) if local else settings.torch_threads
        config: WorkerConfig = {
            "broker": self._broker, "threads": threads, "log_level": settings.log_level, "log_json": settings.log_json,
        }  # fmt: skip
        resources = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus = recipe.trainer_device != "cpu" and resources.get("GPU", 0) >= self._workers
        self._trainer = (_LocalTrainer if local else TorchTrainer)(
            serve,
            train_loop_config=dict(config),
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if gpus else "gloo", timeout_s=int(recipe.trainer.collective_timeout_s)
            ),
            scaling_config=ScalingConfig(num_workers=self._workers, use_gpu=gpus),
            run_config=RunConfig(
                name=secrets.token_hex(4),
                storage_path=str(directory.path / "ray"),
                failure_config=FailureConfig(max_failures=recipe.trainer.max_failures),
            ),
        )
        self._thread = threading.Thread(target=self._keep_alive, name="ray-train", daemon=True)
        self._thread.start()

    def learner(self, recipe: Recipe, source: str, reference: Path) -> RemoteLearner:
        """Return a learner on the newest group of workers; blocks until it exists. Arguments as for `LocalLearner`."""
        self._group = next_group(self._broker, self._group, self._workers, self._timeout_s)
        return RemoteLearner(self._broker, self._group, recipe, source, reference)

    def end(self) -> bool:
        """Have the workers end; return False if they are busy and have not ended in time."""
        self._broker.close.remote("the run has ended")
        self._thread.join(_PATIENCE_S)
        return not self._thread.is_alive()

    def _keep_alive(self) -> None:
        """Return when the workers have ended, or have died once more than the recipe allows."""
        reason = "the workers ended"
        try:
            self._trainer.fit()
        except TrainingFailedError as error:
            reason = f"the training workers died too often (trainer.max_failures): {_first_failure(error)}"
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must hear of it
            reason = f"Ray Train ended: {type(error).__name__}: {error}"
        with contextlib.suppress(Exception):  # if Ray is already gone, callers that wait learn it from Ray
            ray.get(self._broker.close.remote(reason))


@contextlib.contextmanager
def ray_workers(recipe: Recipe, settings: TrainerSettings, directory: RunDirectory) -> Iterator[RayWorkers]:
    """Start workers in the cluster named by RAY_ADDRESS, or in one of this machine that ends with the body."""
    address = os.environ.get(ADDRESS)
    others = set(psutil.Process().children())
    with tempfile.TemporaryDirectory(prefix="gymfleet-ray-", ignore_cleanup_errors=True) as scratch:
        log.info("workers.starting", workers=recipe.trainer.workers, cluster=address or "local")
        try:
            _connect(address, recipe.trainer.workers, scratch)
            workers = RayWorkers(recipe, settings, directory, local=address is None)
            try:
                yield workers
            finally:
                # Never shut Ray down while `fit` waits in its thread: Ray would end the process with its own exit code.
                family = _descendants(others)
                if workers.end():
                    ray.shutdown()
                _kill(family)
        finally:
            _kill(_descendants(others))
            shutil.rmtree(directory.path / "ray", ignore_errors=True)


def _connect(address: str | None, num_cpus: int, scratch: str) -> None:
    local: dict[str, Any] = {
        "num_cpus": num_cpus, "object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False,
        "_temp_dir": scratch, "_node_ip_address": "127.0.0.1",
    }  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        ray.init(address=address or "local", logging_level=logging.WARNING, **({} if address else local))
    except (OSError, RuntimeError, ValueError) as error:
        raise WorkersFailed(f"Ray did not start ({address or 'here'}): {error}") from error
    except SystemExit as stop:  # raised by Ray's own handler, whose exit code is the bare signal number
        _stop(int(stop.code or 0) % _INTERRUPTED, None)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)  # Ray has replaced the handlers


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(_INTERRUPTED + number)


def _descendants(others: set[psutil.Process]) -> list[psutil.Process]:
    """Return the processes of a local Ray and all processes that they have started."""
    return [process for process in psutil.Process().children(recursive=True) if process not in others]


def _kill(processes: list[psutil.Process]) -> None:
    """Kill the processes at once: orphans of Ray end by themselves, but only after some seconds."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # gone, or its number belongs to another process by now
            process.kill()
    psutil.wait_procs(processes, timeout=_PATIENCE_S)


def _first_failure(error: TrainingFailedError) -> str:
    failures = getattr(error, "worker_failures", {})
    text = next((f"worker {rank}: {failure}" for rank, failure in sorted(failures.items())), str(error))
    return " ".join(text.strip().splitlines()[-1:])
