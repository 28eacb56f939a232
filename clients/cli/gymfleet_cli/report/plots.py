"""The charts of a run: its success, and the parity of trainer and engine."""

from typing import Final

from gymfleet_cli.report.charts import Dot, Plot, log_bounds, power_ticks, round_ticks, smooth, x_axis, y_axis
from gymfleet_cli.report.data import RunData

SMOOTHING: Final = 5
"""Number of steps averaged for the smooth line."""


def learning_curve(data: RunData) -> Plot | None:
    """Plot success of the training batches and on held-out tasks; None before either was measured."""
    numbers = [float(step.step) for step in data.steps]
    if not numbers and not data.measurements:
        return None
    values = [step.success for step in data.steps]
    lines = {"raw": values, "mean": smooth(values, SMOOTHING)} if values else {}
    last = max([step.step for step in data.steps] + [one.step for one in data.measurements])
    held_out = ", ".join(f"{100 * one.success:.0f} % at step {one.step}" for one in data.measurements)
    return Plot(
        title="Success per step",
        description=f"Held-out tasks: {held_out or 'not measured'}",
        x=x_axis(0, last),
        y=y_axis(0, 1),
        x_label="step",
        x_ticks=round_ticks(0, last),
        y_ticks={share / 4: f"{25 * share} %" for share in range(5)},
        lines={name: list(zip(numbers, line, strict=True)) for name, line in lines.items()},
        dots=[
            Dot((one.step, one.success), one.interval, f"held-out, step {one.step}: {100 * one.success:.1f} %")
            for one in data.measurements
        ],
    )


def parity(data: RunData) -> Plot | None:
    """Plot the difference in log-probability at each publish; None before the first."""
    if not data.publishes:
        return None
    points = [(float(number), one.parity_mean_abs) for number, one in enumerate(data.publishes, start=1)]
    values = [value for _, value in points]
    low, high = log_bounds([*values, data.tolerance] if data.tolerance else values)
    return Plot(
        title="Mean difference in log-probability per publish",
        description=f"The worst is {max(values):.2g}",
        x=x_axis(1, len(points)),
        y=y_axis(low, high, log=True),
        x_label="publish",
        x_ticks=round_ticks(1, len(points)),
        y_ticks=power_ticks(low, high),
        lines={"mean": points},
        tolerance=data.tolerance or None,
    )
