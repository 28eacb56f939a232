"""The progress of a command over many items: a bar on a terminal, a line every 10 s elsewhere."""

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
    """The progress of a command."""

    done: int
    """Items done, including those from before the command began."""
    new: int
    """Items that the command has done itself, for the rate."""
    total: int
    figures: Sequence[str]
    """Further figures to show."""


class CountingDisplay(LiveDisplay):
    """Draws the count of items, their rate, and the figures.

    Args:
        unit: the name of the items.
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
        """Draw if the next update is due."""
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
