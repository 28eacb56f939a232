"""The open sockets of `/v1/stream`, so that a gateway can disconnect from its clients cleanly."""

import asyncio
from typing import Final, Protocol

import structlog

log = structlog.get_logger()

_PATIENCE_S: Final = 20.0


class Stream(Protocol):
    """One client's socket."""

    async def finish(self) -> None:
        """Answer the accepted calls, accept no more, and close the socket."""


class Streams:
    """All open streams of one gateway."""

    def __init__(self) -> None:
        self._open: set[Stream] = set()
        self.finishing = False

    def add(self, stream: Stream) -> None:
        """Add a client that connected."""
        self._open.add(stream)

    def discard(self, stream: Stream) -> None:
        """Remove a client that disconnected."""
        self._open.discard(stream)

    async def finish(self) -> None:
        """Disconnect all clients: accepted calls are answered, and later calls must go to another gateway."""
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
