"""Charts as inline SVG: coordinates here, colours in the style sheet."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 34
_MAX_TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values of `[low, high]` to pixels; `log` maps their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; values outside of the range are put on the edge."""
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, self._inside(value)))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 2)

    def _inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)


def x_axis(low: float, high: float) -> Axis:
    """Return an axis from the left edge to the right edge."""
    return Axis(low, max(high, low + 1), _LEFT, WIDTH - _RIGHT)


def y_axis(low: float, high: float, *, log: bool = False) -> Axis:
    """Return an axis from the bottom to the top."""
    return Axis(low, high, HEIGHT - _BOTTOM, _TOP, log=log)


def figure(title: str, description: str, body: Sequence[str], *, height: int = HEIGHT) -> str:
    """Return an SVG that a screen reader can announce."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}. {escape(description)}">'
        f"<title>{escape(title)}</title>{''.join(body)}</svg>"
    )


def frame(x: Axis, y: Axis, *, x_ticks: Sequence[float], y_ticks: Mapping[float, str], x_label: str) -> list[str]:
    """Draw grid lines with their labels."""
    parts = [
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{escape(label)}</text>'
        for value, label in y_ticks.items()
    ]
    parts += [
        f'<text class="tick" x="{x(value)}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
        for value in x_ticks
    ]
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    return parts


def line(x: Axis, y: Axis, points: Sequence[tuple[float, float]], css: str) -> str:
    """Draw a polyline; a single point becomes a dot."""
    if len(points) == 1:
        return dot(x, y, points[0], css)
    path = " ".join(f"{x(a)},{y(b)}" for a, b in points)
    return f'<polyline class="{css}" points="{path}"/>'


def dot(x: Axis, y: Axis, point: tuple[float, float], css: str, label: str = "") -> str:
    """Draw a point with a tooltip."""
    title = f"<title>{escape(label)}</title>" if label else ""
    return f'<circle class="{css} dot" cx="{x(point[0])}" cy="{y(point[1])}" r="4">{title}</circle>'


def whisker(x: Axis, y: Axis, at: float, low: float, high: float, css: str) -> str:
    """Draw an interval."""
    return f'<line class="{css} whisker" x1="{x(at)}" x2="{x(at)}" y1="{y(low)}" y2="{y(high)}"/>'


def level(y: Axis, value: float, label: str) -> str:
    """Draw a dashed line across the figure, such as a tolerance."""
    return (
        f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}"/>'
        f'<text class="tick" x="{WIDTH - _RIGHT}" y="{y(value) - 5}" text-anchor="end">{escape(label)}</text>'
    )


def round_ticks(low: int, high: int) -> list[float]:
    """Return at most six round numbers within `[low, high]`."""
    raw = max(1.0, (high - low) / (_MAX_TICKS - 1))
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step)
    return [number * step for number in range(first, math.floor(high / step) + 1)]


def log_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return powers of ten around all positive values."""
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    return 10.0**low, 10.0 ** max(high, low + 1)


def power_ticks(low: float, high: float) -> dict[float, str]:
    """Return one tick per power of ten."""
    exponents = range(round(math.log10(low)), round(math.log10(high)) + 1)
    stride = max(1, len(exponents) // _MAX_TICKS)
    return {10.0**exponent: f"1e{exponent}" for exponent in exponents[::stride]}


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and of up to `window - 1` values before it."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i - window + 1) : i + 1])]


def stacked_bar(parts: Mapping[str, float]) -> list[str]:
    """Draw one bar across the whole width; class `part-NAME` gives each part its colour."""
    total = sum(parts.values())
    shapes, at = [], 0.0
    for name, value in parts.items():
        width = WIDTH * value / total if total > 0 else 0.0
        label = f"{name}: {value:.2f} s, {100 * value / total:.0f} %" if total > 0 else name
        shapes.append(
            f'<rect class="part-{escape(name)}" x="{at:.2f}" y="0" width="{width:.2f}" height="28">'
            f"<title>{escape(label)}</title></rect>"
        )
        at += width
    return shapes
