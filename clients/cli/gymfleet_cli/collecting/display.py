"""The progress of a collection: a bar on a terminal, a line every 10 s elsewhere."""

import time
from typing import Final

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gymfleet_cli.collecting.collector import Tally
from gymfleet_cli.collecting.spending import Spending
from gymfleet_cli.console import plain
from gymfleet_cli.live_display import LiveDisplay
from gymfleet_cli.progress import DRAW_INTERVAL_S, PLAIN_INTERVAL_S, duration

_SECONDS_PER_MINUTE: Final = 60


class CollectDisplay(LiveDisplay):
    """Draws how many episodes there are, how fast they come, what they cost and how many solved their task."""

    def __init__(self, console: Console, tally: Tally, spending: Spending) -> None:
        super().__init__(console)
        self._tally = tally
        self._spending = spending
        self._began = time.monotonic()
        self._drawn = self._began

    def refresh(self) -> None:
        """Draw, when the next update is due."""
        now = time.monotonic()
        if now - self._drawn < (DRAW_INTERVAL_S if self._live is not None else PLAIN_INTERVAL_S):
            return
        self._drawn = now
        if self._live is None:
            line = f"{self._tally.kept}/{self._tally.asked} episodes · {' · '.join(self._figures(now))}"
            self._console.print(plain(f"[{duration(now - self._began)}] {line}"), soft_wrap=True)
            return
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._tally.asked, completed=self._tally.kept, width=40),
            f"{self._tally.kept}/{self._tally.asked} episodes",
            Text(duration(now - self._began), style="dim"),
        )
        self._draw(Group(bar, plain("   ".join(self._figures(now)), "cyan")))

    def _figures(self, now: float) -> list[str]:
        tally = self._tally
        rate = tally.played / max(now - self._began, 1e-9) * _SECONDS_PER_MINUTE
        return [f"{rate:.1f} episodes/min", *figures(tally, self._spending)]


def figures(tally: Tally, spending: Spending) -> list[str]:
    """Return the outcome so far, and what it cost, in words."""
    parts = []
    if tally.kept:
        parts.append(f"{tally.solved} solved ({100 * tally.solved / tally.kept:.1f} %)")
    if spending.tokens:
        parts.append(f"{spending.tokens:,} tokens")
    if spending.cost:
        parts.append(f"cost {spending.cost:.4g}")
    if tally.repeated:
        parts.append(f"{tally.repeated} attempts repeated")
    if tally.given_up:
        parts.append(f"{tally.given_up} episodes given up")
    return parts
