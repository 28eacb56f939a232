"""The display of a run's progress: `progress.json`, its summary in one line, and the live display."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gymfleet_contracts.run import RunProgress
from pydantic import ValidationError
from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gymfleet_cli.console import plain
from gymfleet_cli.live_display import LiveDisplay

PLAIN_INTERVAL_S: Final = 10.0
DRAW_INTERVAL_S: Final = 0.5
PHASES: Final = {"starting": "start", "failed": "stopped by a failure"}
"""Names of phases that are not stages, and the words that are shown for them."""


def read_progress(run_dir: Path) -> RunProgress | None:
    """Read the progress; return None before the run has written any."""
    try:
        return RunProgress.model_validate_json((run_dir / "progress.json").read_bytes())
    except (OSError, ValidationError):
        return None


def duration(seconds: float) -> str:
    """Format seconds as `7 s`, `3 min 20 s` or `1 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def describe(progress: RunProgress) -> str:
    """Describe the progress in one line: stage, position, rate, time left and figures."""
    parts = [PHASES.get(progress.phase, progress.phase)]
    if progress.phase == "done":
        return " · ".join([*parts, progress.message])
    if progress.total:
        parts.append(f"{progress.step}/{progress.total} {progress.unit}".rstrip())
    if progress.rate:
        parts.append(_rate(progress))
    if progress.eta_s is not None:
        parts.append(f"{duration(progress.eta_s)} left")
    parts += _figures(progress)
    if progress.message:
        parts.append(progress.message)
    return " · ".join(parts)


def _rate(progress: RunProgress) -> str:
    rate = progress.rate or 0.0
    unit = progress.unit or "steps"
    return f"{rate:.1f} {unit}/s" if rate >= 0.1 else f"{1 / rate:.0f} s each"


def _figures(progress: RunProgress) -> list[str]:
    return [f"{name.replace('_', ' ')} {value:.4g}" for name, value in progress.metrics.items()]


class RunDisplay(LiveDisplay):
    """Draws the progress that `read` returns: live on a terminal, a line every 10 s elsewhere."""

    def __init__(self, console: Console, read: Callable[[], RunProgress | None]) -> None:
        super().__init__(console)
        self._read = read
        self._started = time.monotonic()
        self._began_at = time.time()
        self._drawn = 0.0
        self._phase = ""

    def refresh(self) -> None:
        """Read the file, and draw if the next update is due."""
        now = time.monotonic()
        progress = self._read()
        if progress is None or progress.updated_at < self._began_at:  # left by an interrupted run
            return
        new_phase = progress.phase != self._phase
        interval_s = DRAW_INTERVAL_S if self._live is not None else PLAIN_INTERVAL_S
        if not new_phase and now - self._drawn < interval_s:
            return
        self._drawn, self._phase = now, progress.phase
        elapsed = duration(now - self._started)
        if self._live is None:
            self._console.print(plain(f"[{elapsed}] {describe(progress)}"), soft_wrap=True)
        else:
            self._draw(_panel(progress, elapsed))


def _panel(progress: RunProgress, elapsed: str) -> Group:
    head = Text.assemble((PHASES.get(progress.phase, progress.phase), "bold"), "  ", (elapsed, "dim"))
    bar = Table.grid(padding=(0, 2))
    if progress.total:
        left = "" if progress.eta_s is None else f"{duration(progress.eta_s)} left"
        bar.add_row(
            ProgressBar(total=progress.total, completed=min(progress.step, progress.total), width=40),
            f"{progress.step}/{progress.total} {progress.unit}",
            _rate(progress) if progress.rate else "",
            Text(left, style="dim"),
        )
    figures = plain("   ".join(_figures(progress)), "cyan")
    return Group(head, bar, figures, plain(progress.message, "dim"))
