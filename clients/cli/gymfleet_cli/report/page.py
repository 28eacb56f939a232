"""The page itself: the data that its template shows."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gymfleet_cli.progress import duration
from gymfleet_cli.report.charts import Segment, stacked
from gymfleet_cli.report.data import RunData
from gymfleet_cli.report.episodes import MAX_TURNS, faults, visible
from gymfleet_cli.report.plots import SMOOTHING, learning_curve, parity
from gymfleet_cli.run_directory import LeftByStage, RunFiles

REPORT_FILE: Final = "report.html"
_SCALARS: Final = (str, int, float, bool)
_MACHINE: Final = frozenset({"hardware", "software", "inference"})
_ELSEWHERE: Final = _MACHINE | {"stages", "environments", "evals", "counts"}
"""Parts of the summary that are shown in another section, or that repeat one in detail."""


def write_report(run_dir: Path) -> Path:
    """Write `report.html` into the run directory. Raises `RunDataError` for a directory without a run."""
    page = render(RunData.load(RunFiles.open(run_dir)))
    descriptor, temporary = tempfile.mkstemp(dir=run_dir, prefix=".report-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(page)
    path = run_dir / REPORT_FILE
    Path(temporary).chmod(0o644)
    Path(temporary).replace(path)
    return path


def render(data: RunData) -> str:
    """Render the whole document."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - most commands write no page

    environment = Environment(
        loader=PackageLoader("gymfleet_cli", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"faults": faults, "visible": visible, "duration": duration, "results": _results}
    return environment.get_template("page.html.j2").render(
        run=data,
        learning_curve=learning_curve(data),
        smoothing=SMOOTHING,
        step_time=_step_time(data),
        parity=parity(data),
        max_turns=MAX_TURNS,
        figures=_facts({name: value for name, value in data.summary.items() if name not in _ELSEWHERE}),
        machine=_facts({name: value for name, value in data.summary.items() if name in _MACHINE}),
    )


def _results(stage: LeftByStage) -> list[str]:
    results = []
    if stage.success is not None:
        results.append(f"{100 * stage.success:.1f} % success")
    if stage.episodes is not None:
        results.append(f"{stage.num_episodes} episodes in {stage.episodes}")
    if stage.model is not None:
        results.append(f"a model in {stage.model}")
    return results


def _step_time(data: RunData) -> list[Segment]:
    seconds = data.mean_step_seconds()
    return stacked(seconds) if sum(seconds.values()) > 0 else []


def _facts(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested tables to `outer.inner` and lists of numbers to one line; keys keep the trainer's order."""
    rows: list[tuple[str, str]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            rows += _facts(value, f"{name}.")
        elif isinstance(value, list):
            rows.append((name, ", ".join(_shown(item) for item in value)))
        elif isinstance(value, _SCALARS):
            rows.append((name, _shown(value)))
    return rows


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
