"""The page itself, with sections in the order of a reader's questions."""

import os
import tempfile
from html import escape
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Final

from gymfleet_cli.report import charts
from gymfleet_cli.report.data import TIME_PARTS, Measurement, RunData
from gymfleet_cli.report.episodes import pairs_section
from gymfleet_cli.run_directory import RunFiles

REPORT_FILE: Final = "report.html"
_SMOOTHING: Final = 5
_SCALARS: Final = (str, int, float, bool)
_ELSEWHERE: Final = frozenset({"evals", "counts", "hardware", "software", "inference"})
"""Parts of the summary that another section shows, or that repeat it in detail."""


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
    style = package_files("gymfleet_cli.report").joinpath("style.css").read_text(encoding="utf-8")
    sections = [
        _section("Learning curve", _learning_curve(data)),
        _section("Where a training step's time goes", _step_time(data)),
        _section("Agreement of trainer and engine", _parity(data)),
        _section("The same tasks, before and after", pairs_section(data.pairs)),
        _section("Figures", _figures(data)),
        _section("Machine and versions", _machine(data)),
        _section("Recipe", f"<pre>{escape(data.recipe_text or 'no recipe was recorded')}</pre>"),
    ]
    title = escape(f"gymfleet: {data.title}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{style}</style></head><body><main>"
        f"{_header(data)}{''.join(sections)}</main></body></html>\n"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _header(data: RunData) -> str:
    before, after = data.measured("eval_before"), data.measured("eval_after")
    numbers = "".join(_headline(label, one) for label, one in (("Before", before), ("After", after)))
    state = (
        "" if data.summary else '<p class="fault">This run is not finished: the page shows what there is so far.</p>'
    )
    kind = f"Environment: <b>{escape(data.environment)}</b>" if data.environment else ""
    return (
        f"<header><h1>{escape(data.title)}</h1><p>{escape(data.description)}</p><p>{kind}</p>{state}"
        f'<div class="headline">{numbers}</div>{_verdict(before, after)}</header>'
    )


def _headline(label: str, one: Measurement | None) -> str:
    if one is None:
        return f'<div><p>{label}</p><p class="number">not measured</p></div>'
    low, high = (f"{100 * bound:.1f}" for bound in one.interval)
    return (
        f'<div><p>{label}</p><p class="number">{100 * one.success:.1f} %</p>'
        f'<p class="note">95 % interval {low} to {high} %, {one.num_episodes} episodes</p></div>'
    )


def _verdict(before: Measurement | None, after: Measurement | None) -> str:
    if before is None or after is None:
        return ""
    if after.interval[0] > before.interval[1]:
        text = "The intervals do not overlap: success on held-out tasks rose."
    elif after.interval[1] < before.interval[0]:
        text = "The intervals do not overlap: success on held-out tasks fell."
    else:
        text = "The intervals overlap: these episodes do not show a difference for certain."
    return f"<p>{text}</p>"


def _learning_curve(data: RunData) -> str:
    if not data.steps and not data.measurements:
        return '<p class="note">No step of reinforcement learning was made.</p>'
    last = max([step.step for step in data.steps] + [one.step for one in data.measurements])
    x, y = charts.x_axis(0, last), charts.y_axis(0, 1)
    ticks = {share / 4: f"{25 * share} %" for share in range(5)}
    body = charts.frame(x, y, x_ticks=charts.round_ticks(0, last), y_ticks=ticks, x_label="step")
    if data.steps:
        numbers = [float(step.step) for step in data.steps]
        values = [step.success for step in data.steps]
        body.append(charts.line(x, y, list(zip(numbers, values, strict=True)), "raw"))
        body.append(charts.line(x, y, list(zip(numbers, charts.smooth(values, _SMOOTHING), strict=True)), "mean"))
    for one in data.measurements:
        label = f"held-out, step {one.step}: {100 * one.success:.1f} %"
        body.append(charts.whisker(x, y, one.step, *one.interval, "eval"))
        body.append(charts.dot(x, y, (one.step, one.success), "eval", label))
    held_out = ", ".join(f"{100 * one.success:.0f} % at step {one.step}" for one in data.measurements)
    legend = (
        '<p class="legend"><i class="key raw"></i>training batch <i class="key mean"></i>mean of the last '
        f'{_SMOOTHING} <i class="key eval"></i>held-out tasks, with 95 % interval</p>'
    )
    return charts.figure("Success per step", f"Held-out tasks: {held_out or 'not measured'}", body) + legend


def _step_time(data: RunData) -> str:
    parts = data.mean_step_seconds()
    total = sum(parts.values())
    if total <= 0:
        return '<p class="note">No step was timed.</p>'
    rows = "".join(
        f'<tr><td><i class="key part-{name}"></i>{name}</td><td>{parts[name]:.2f} s</td>'
        f"<td>{100 * parts[name] / total:.0f} %</td></tr>"
        for name in TIME_PARTS
    )
    description = ", ".join(f"{name} {100 * parts[name] / total:.0f} %" for name in TIME_PARTS)
    return (
        charts.figure("Mean time of a step", description, charts.stacked_bar(parts), height=28)
        + f'<table class="small"><thead><tr><th>part</th><th>mean per step</th><th>share</th></tr></thead>{rows}'
        f"<tfoot><tr><td>step</td><td>{total:.2f} s</td><td></td></tr></tfoot></table>"
        '<p class="note">Episodes overlap: the time in which the trainer waited for them is divided in proportion to '
        "the seconds that they spent in each part.</p>"
    )


def _parity(data: RunData) -> str:
    if not data.publishes:
        return '<p class="note">No version was published.</p>'
    points = [(float(number), one.parity_mean_abs) for number, one in enumerate(data.publishes, start=1)]
    values = [value for _, value in points] + ([data.tolerance] if data.tolerance else [])
    low, high = charts.log_bounds(values)
    x, y = charts.x_axis(1, len(points)), charts.y_axis(low, high, log=True)
    ticks = charts.round_ticks(1, len(points))
    body = charts.frame(x, y, x_ticks=ticks, y_ticks=charts.power_ticks(low, high), x_label="publish")
    body.append(charts.line(x, y, points, "mean"))
    if data.tolerance:
        body.append(charts.level(y, data.tolerance, f"tolerance {data.tolerance:g}"))
    worst = max(value for _, value in points)
    return (
        charts.figure("Mean difference in log-probability per publish", f"The worst is {worst:.2g}", body)
        + f"<p>{len(points)} versions were published. Before each went live, the engine sampled a probe with it "
        f"and the trainer computed the same log-probabilities; the worst mean difference was {worst:.2g}.</p>"
    )


def _figures(data: RunData) -> str:
    figures = {key: value for key, value in data.summary.items() if key not in _ELSEWHERE}
    if not figures:
        return '<p class="note">They are written at the end of the run.</p>'
    return _facts(figures)


def _machine(data: RunData) -> str:
    facts = {key: value for key, value in data.summary.items() if key in ("hardware", "software", "inference")}
    return _facts(facts) if facts else '<p class="note">They are written at the end of the run.</p>'


def _facts(document: dict[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in _flat(document))
    return f'<table class="facts">{rows}</table>'


def _flat(document: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested tables to `outer.inner` and lists of numbers to one line; keys keep the trainer's order."""
    rows: list[tuple[str, str]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            rows += _flat(value, f"{name}.")
        elif isinstance(value, list):
            rows.append((name, ", ".join(_shown(item) for item in value)))
        elif isinstance(value, _SCALARS):
            rows.append((name, _shown(value)))
    return rows


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
