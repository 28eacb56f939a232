"""Signals as a flag that loops check, so that no stop falls between a start and its record."""

import signal
from types import FrameType, TracebackType
from typing import Any, Final, Self

from gymfleet_cli.supervisor.errors import Interrupted

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """A context in which SIGINT, SIGTERM and SIGHUP are counted instead of raised."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {signum: signal.signal(signum, self._record) for signum in _SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def _record(self, signum: int, _: FrameType | None) -> None:
        self._received.append(signum)

    def check(self) -> None:
        """Raise `Interrupted` once a signal has arrived."""
        if self._received:
            raise Interrupted(self._received[0])

    def insisted(self) -> bool:
        """Whether a second signal has arrived, because the user does not want to wait."""
        return len(self._received) > 1
