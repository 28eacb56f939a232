"""A display that is redrawn in place on a terminal, and printed line by line elsewhere."""

from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live


class LiveDisplay:
    """Redraws on a terminal while entered.

    `_draw` draws it, not a thread, because children are forked from this process.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _draw(self, drawing: RenderableType) -> None:
        if self._live is not None:
            self._live.update(drawing, refresh=True)
