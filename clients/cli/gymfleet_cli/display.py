"""The display of a start: a live table on a terminal, one line per event elsewhere."""

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gymfleet_cli.console import plain
from gymfleet_cli.live_display import LiveDisplay

Waiting = Mapping[str, str | None]


class StartDisplay(LiveDisplay):
    """Shows which services are ready, and what the others are waiting for.

    A service that is already ready is not reported again; with `quiet` nothing stays on the screen.
    """

    def __init__(self, console: Console, waiting: Callable[[], Waiting], *, quiet: bool = False) -> None:
        super().__init__(console)
        self._waiting = waiting
        self._quiet = quiet
        self._told = {name for name, reason in waiting().items() if reason is None}
        self._spinners: dict[str, Spinner] = {}

    def refresh(self) -> None:
        """Draw the present state, and report what has become ready since the last call."""
        waiting = self._waiting()
        for name, reason in waiting.items():
            if reason is None and name not in self._told:
                self._told.add(name)
                if not self._quiet:
                    self._console.print(Text.assemble((" ready ", "green"), name))
        self._draw(self._table(waiting))

    def _table(self, waiting: Waiting) -> Table:
        table = Table.grid(padding=(0, 1))
        for name, reason in waiting.items():
            if reason is not None:
                spinner = self._spinners.setdefault(name, Spinner("dots"))
                table.add_row(spinner, Text(name, style="bold"), plain(reason, "dim"))
        return table
