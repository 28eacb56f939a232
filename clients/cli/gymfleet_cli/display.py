"""The display of a start: a live table on a terminal, one line per event elsewhere."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gymfleet_cli.console import plain

Waiting = Mapping[str, str | None]


class StartDisplay:
    """Shows which services are ready and what the others wait for.

    It is drawn when `refresh` is called, not by a thread, because children are forked from this process.
    A service that is already ready is not reported again; with `quiet` nothing stays on the screen.
    """

    def __init__(self, console: Console, waiting: Callable[[], Waiting], *, quiet: bool = False) -> None:
        self._console = console
        self._waiting = waiting
        self._quiet = quiet
        self._told = {name for name, reason in waiting().items() if reason is None}
        self._spinners: dict[str, Spinner] = {}
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def refresh(self) -> None:
        """Draw the present state, and report what has become ready since the last call."""
        waiting = self._waiting()
        for name, reason in waiting.items():
            if reason is None and name not in self._told:
                self._told.add(name)
                if not self._quiet:
                    self._console.print(Text.assemble((" ready ", "green"), name))
        if self._live is not None:
            self._live.update(self._table(waiting), refresh=True)

    def _table(self, waiting: Waiting) -> Table:
        table = Table.grid(padding=(0, 1))
        for name, reason in waiting.items():
            if reason is not None:
                spinner = self._spinners.setdefault(name, Spinner("dots"))
                table.add_row(spinner, Text(name, style="bold"), plain(reason, "dim"))
        return table
