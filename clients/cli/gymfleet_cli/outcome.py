"""The message at the end of a finished run."""

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from gymfleet_cli.console import out, plain
from gymfleet_cli.progress import duration
from gymfleet_cli.report import REPORT_FILE
from gymfleet_cli.report.data import Measurement, RunData, Success
from gymfleet_cli.run_directory import RunFiles


def print_outcome(run_dir: Path) -> None:
    """Print success before and after with intervals, the main figures, and the files. Raises `RunDataError`."""
    data = RunData.load(RunFiles.open(run_dir))
    table = Table.grid(padding=(0, 2))
    for label, one in (("before", data.before), ("after" if data.before else "success", data.after)):
        for part, line in success_lines(one).items() if one is not None else ():
            table.add_row(plain(part or label, "" if part else "bold"), plain(line))
    for label, value in _figures(data):
        table.add_row(Text(label, style="dim"), plain(value))
    out.print(table)
    places = {"report": run_dir / REPORT_FILE, "model": run_dir / "model"}
    for label, path in places.items():
        if path.exists():
            out.print(plain(f"{label}: {path}"), soft_wrap=True)
    out.print(plain(f"episodes: gymfleet trajectories list {run_dir}"), soft_wrap=True)


def success_lines(one: Measurement) -> dict[str, str]:
    """Format a measurement, under an empty title, and each environment's if there are several."""
    return {"": success_line(one), **{title: success_line(part) for title, part in one.environments.items()}}


def success_line(one: Success) -> str:
    """Format a measurement as `41.5 % success (95 % interval 34.9 to 48.4 %, 200 episodes)`.

    If tasks were played several times, the chance that all of a task's episodes succeed follows: `, pass^4 12.5 %`.
    """
    low, high = one.interval
    line = (
        f"{100 * one.success:.1f} % success "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f} %, {one.num_episodes} episodes)"
    )
    shown = [f"pass^{k} {100 * value:.1f} %" for k, value in enumerate(one.pass_hat, start=1) if k > 1]
    return ", ".join((line, *shown[-1:]))


def _figures(data: RunData) -> list[tuple[str, str]]:
    rows = []
    if data.steps:
        rows.append(("steps", str(len(data.steps))))
        rows.append(("tokens trained on", f"{sum(step.tokens for step in data.steps):,.0f}"))
    if isinstance(unrewarded := data.summary.get("episodes_without_reward"), int) and unrewarded:
        rows.append(("episodes whose reward could not be computed", f"{unrewarded:,}"))
    if data.publishes:
        worst = max(one.parity_mean_abs for one in data.publishes)
        rows.append(("versions published", f"{len(data.publishes)} (worst mean parity {worst:.2g})"))
    seconds: Any = data.summary.get("seconds")
    if isinstance(seconds, dict):
        known = {name: value for name, value in seconds.items() if isinstance(value, int | float)}
        total = known.get("total")
        if total is not None:
            rows.append(("training and measuring", duration(total)))
    return rows
