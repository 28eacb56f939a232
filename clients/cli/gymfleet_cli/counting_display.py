"""The progress of a command that goes through many things: a bar on a terminal, a line every 10 s elsewhere."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gymfleet_cli.console import plain
from gymfleet_cli.live_display import LiveDisplay
from gymfleet_cli.progress import DRAW_INTERVAL_S, PLAIN_INTERVAL_S, duration


class Count(NamedTuple):
    """How far a command is."""

    done: int
    """With what was there before the command began."""
    new: int
    """What the command has done itself, for the rate."""
    total: int
    figures: Sequence[str]
    """What else is to be said."""


class CountingDisplay(LiveDisplay):
    """Draws how many there are, how fast they come, and the figures.

    Args:
        unit: what is counted.
        per: the unit of the rate, and its seconds.
        read: returns the present state.
    """

    def __init__(self, console: Console, unit: str, per: tuple[str, float], read: Callable[[], Count]) -> None:
        super().__init__(console)
        self._unit = unit
        self._per, self._seconds = per
        self._read = read
        self._began = self._drawn = time.monotonic()

    def refresh(self) -> None:
        """Draw, when the next update is due."""
        now = time.monotonic()
        if now - self._drawn < (DRAW_INTERVAL_S if self._live is not None else PLAIN_INTERVAL_S):
            return
        self._drawn = now
        count, elapsed = self._read(), duration(now - self._began)
        position = f"{count.done}/{count.total} {self._unit}"
        rate = count.new / (now - self._began) * self._seconds
        figures = [f"{rate:.1f} {self._unit}/{self._per}", *count.figures]
        if self._live is None:
            self._console.print(plain(" · ".join([f"[{elapsed}] {position}", *figures])), soft_wrap=True)
            return
        bar = Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=count.total, completed=count.done, width=40), position, Text(elapsed, "dim"))
        self._draw(Group(bar, plain("   ".join(figures), "cyan")))
