"""Curves for the docs, as SVG; the same figures give the same bytes."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

FIGURES: Final = Path(__file__).parents[1] / "docs" / "figures"
Curve = Sequence[tuple[float, float]]
_COLUMNS: Final = 6
_STYLE: Final[Any] = {
    "svg.hashsalt": "gymfleet", "svg.fonttype": "none", "font.size": 7, "axes.titlesize": 8,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip


def small_multiples(panels: Mapping[str, Sequence[Curve]], *, x: str, y: str) -> str:
    """Draw one panel per name, all to one scale: its curves and, behind them in grey, the range of all curves."""
    rows = -(-len(panels) // _COLUMNS)
    everything = [curve for curves in panels.values() for curve in curves]
    places = np.linspace(0, max(end for *_, (end, _) in everything), 40)
    heights = np.array([np.interp(places, *np.array(curve).T) for curve in everything])
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(1.7 * _COLUMNS, 1.5 * rows + 0.4), layout="constrained")
        axes = figure.subplots(rows, _COLUMNS, sharex=True, sharey=True, squeeze=False)
        for place, panel in enumerate(axes.flat):
            if place >= len(panels):
                panel.set_visible(False)
                continue
            name = list(panels)[place]
            panel.fill_between(places, heights.min(0), heights.max(0), color="0.92", linewidth=0)
            for curve in panels[name]:
                panel.plot(*zip(*curve, strict=True), color="C0", linewidth=1)
            panel.set_title(name)
            panel.set_ylim(0, 1)
        figure.supxlabel(x)
        figure.supylabel(y)
        return _svg(figure)


def side_by_side(panels: Mapping[str, Sequence[Curve]], *, x: str) -> str:
    """Draw one panel per quantity, each with its own scale and a curve per seed."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3 * len(panels), 2.6), layout="constrained")
        for panel, (y, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            for curve in curves:
                panel.plot(*zip(*curve, strict=True), color="C0", marker="o", markersize=3, linewidth=1)
            panel.set_ylabel(y)
        figure.supxlabel(x)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"
