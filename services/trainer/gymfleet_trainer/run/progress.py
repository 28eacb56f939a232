"""The progress of the run, for people: `progress.json`, `GET /v1/run` and Prometheus."""

import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gymfleet_contracts.run import RunEvents, RunProgress
from gymfleet_kit.run_events import num_events, read_events

from gymfleet_trainer.metrics import DISK_FREE, DISK_SIZE, PROGRESS
from gymfleet_trainer.run.run_directory import RunDirectory


class Reporter:
    """Keep one `RunProgress` up to date. Rates are over the current phase in this process."""

    def __init__(self, directory: RunDirectory, run_id: str) -> None:
        self._directory = directory
        self._headline: dict[str, float] = {}
        self._started = time.monotonic()
        self._first_step = 0
        self.current = RunProgress(run_id=run_id, phase="starting", updated_at=time.time())
        PROGRESS.set_to_current_time()
        DISK_FREE.set_function(lambda: _disk(directory.path, "free"))
        DISK_SIZE.set_function(lambda: _disk(directory.path, "total"))

    def events(self, after: int, limit: int) -> RunEvents:
        """Return up to `limit` events after number `after`. Raises `EventsDamaged`."""
        path = self._directory.path
        return RunEvents(events=tuple(read_events(path, after, limit)), last=num_events(path))

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
        self._directory.event(phase, {"message": message})


def _disk(path: Path, what: Literal["free", "total"]) -> float:
    """Return bytes of a directory's disk, or NaN if it is missing, so that all other metrics stay available."""
    try:
        return float(getattr(shutil.disk_usage(path), what))
    except OSError:
        return math.nan
