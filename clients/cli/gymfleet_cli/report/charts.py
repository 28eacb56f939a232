"""Geometry of the charts: the pixel of each value. The template draws them, the style sheet colours them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

WIDTH: Final = 720
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 34
_MAX_TICKS: Final = 6
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values of `[low, high]` to pixels; `log` maps their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; values outside the range are put on the edge."""
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


@dataclass(frozen=True, slots=True)
class Dot:
    """A measurement with its interval; the label is its tooltip."""

    at: Point
    interval: Point
    label: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart in values; calling an axis gives the pixel of a value."""

    width: ClassVar[int] = WIDTH
    height: ClassVar[int] = HEIGHT

    title: str
    description: str
    """Text for screen readers, in addition to the title."""
    x: Axis
    y: Axis
    x_label: str
    x_ticks: Sequence[float]
    y_ticks: Mapping[float, str]
    lines: Mapping[str, Sequence[Point]]
    """Points of each line, by the CSS class that colours it."""
    dots: Sequence[Dot] = ()
    tolerance: float | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stacked bar; share and start are fractions of the bar's width."""

    name: str
    value: float
    share: float
    start: float


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
    """Return, for each value, the mean of it and up to `window - 1` values before it."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i - window + 1) : i + 1])]


def stacked(parts: Mapping[str, float]) -> list[Segment]:
    """Divide a bar among the parts, whose sum is positive."""
    total, segments, start = sum(parts.values()), list[Segment](), 0.0
    for name, value in parts.items():
        segments.append(Segment(name, value, value / total, start))
        start += value / total
    return segments
