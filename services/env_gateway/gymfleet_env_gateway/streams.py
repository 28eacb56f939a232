"""The sockets of `/v1/stream` that are open, so that a gateway can part from its clients in peace."""

import asyncio
from typing import Final, Protocol

import structlog

log = structlog.get_logger()

_PATIENCE_S: Final = 20.0


class Stream(Protocol):
    """One client's socket."""

    async def finish(self) -> None:
        """Answer what was taken up, take up nothing more, hang up."""


class Streams:
    """All of one gateway."""

    def __init__(self) -> None:
        self._open: set[Stream] = set()
        self.finishing = False

    def add(self, stream: Stream) -> None:
        """A client came."""
        self._open.add(stream)

    def discard(self, stream: Stream) -> None:
        """It went."""
        self._open.discard(stream)

    async def finish(self) -> None:
        """Part from all clients: what they asked is answered, what they ask from now on they must ask elsewhere."""
        self.finishing = True
        log.info("gateway.draining", sockets=len(self._open))
        parting = [asyncio.create_task(stream.finish()) for stream in self._open]
        if parting:
            _, late = await asyncio.wait(parting, timeout=_PATIENCE_S)
            for task in late:
                task.cancel()
            if late:
                log.warning("gateway.drain_timed_out", sockets=len(late), after_s=_PATIENCE_S)
        log.info("gateway.drained")
