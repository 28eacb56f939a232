"""The progress of the run, for people: `progress.json`, `GET /v1/run` and Prometheus."""

import shutil
import time
from collections.abc import Mapping
from typing import Final

from gymfleet_contracts.run import RunProgress
from prometheus_client import Counter, Gauge

from gymfleet_trainer.run.run_directory import RunDirectory

STEP: Final = Gauge("gymfleet_trainer_step", "Finished steps of reinforcement learning")
VERSION: Final = Gauge("gymfleet_trainer_policy_version", "The last policy version that went live")
PARITY: Final = Gauge("gymfleet_trainer_parity_mean_abs", "Mean |log-probability difference| of the last publish")
TOLERANCE: Final = Gauge("gymfleet_trainer_parity_tolerance", "The same from which on versions are refused")
REFUSED: Final = Counter("gymfleet_trainer_versions_refused", "Attempts to publish that ended in a refusal")
HELD: Final = Gauge("gymfleet_trainer_trajectories_held", "Trajectories received and not yet acknowledged")
GROUPS: Final = Counter("gymfleet_trainer_groups", "Training groups by what became of them", ["outcome"])
UNREWARDED: Final = Counter(
    "gymfleet_trainer_trajectories_without_reward", "Episodes played to their end whose reward could not be computed"
)
BURIED: Final = Counter(
    "gymfleet_trainer_trajectories_buried", "Records that were unreadable, or of no use to this run"
)
REPLAYED: Final = Counter("gymfleet_trainer_samples_replayed", "Samples that were asked for again within their group")
TOKENS: Final = Counter("gymfleet_trainer_tokens", "Sampled tokens that were trained on")
PROGRESS: Final = Gauge("gymfleet_trainer_progress_timestamp_seconds", "When the run last got on, in Unix time")
DISK_FREE: Final = Gauge("gymfleet_trainer_disk_free_bytes", "Room on the disk of the run directory")
DISK_SIZE: Final = Gauge("gymfleet_trainer_disk_size_bytes", "Size of the disk of the run directory")


class Reporter:
    """Keep one `RunProgress` up to date. Rates are over the current phase in this process."""

    def __init__(self, directory: RunDirectory, run_id: str) -> None:
        self._directory = directory
        self._headline: dict[str, float] = {}
        self._started = time.monotonic()
        self._first_step = 0
        self.current = RunProgress(run_id=run_id, phase="starting", updated_at=time.time())
        PROGRESS.set_to_current_time()
        DISK_FREE.set_function(lambda: shutil.disk_usage(directory.path).free)
        DISK_SIZE.set_function(lambda: shutil.disk_usage(directory.path).total)

    def begin(self, phase: str, *, step: int, total: int, unit: str, message: str = "") -> None:
        """Begin a phase of which `step` of `total` units are already done."""
        self._started = time.monotonic()
        self._first_step = step
        self.current = self.current.model_copy(update={"phase": phase, "total": total, "unit": unit})
        self.advance(step, message)

    def advance(self, step: int, message: str = "", *, metrics: Mapping[str, float] | None = None) -> None:
        """Record that `step` units are done."""
        if (step, message) != (self.current.step, self.current.message):
            PROGRESS.set_to_current_time()
        self._headline |= {name: round(value, 6) for name, value in (metrics or {}).items()}
        elapsed_s = time.monotonic() - self._started
        done = step - self._first_step
        rate = done / elapsed_s if done > 0 and elapsed_s > 0 else None
        left = max(0, self.current.total - step)
        self.current = self.current.model_copy(
            update={
                "step": step,
                "rate": rate,
                "eta_s": left / rate if rate else None,
                "message": message,
                "metrics": dict(self._headline),
                "updated_at": time.time(),
            }
        )
        self._directory.progress(self.current)

    def finish(self, phase: str, message: str) -> None:
        """Record that the run has ended, whether it succeeded or failed."""
        self.current = self.current.model_copy(
            update={"phase": phase, "message": message, "eta_s": None, "updated_at": time.time()}
        )
        self._directory.progress(self.current)
