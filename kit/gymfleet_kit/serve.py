"""Run an app with uvicorn: report a port in use in one clear line, and exit cleanly on SIGINT and SIGTERM."""

import asyncio
import errno
import gc
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import NoReturn

import uvicorn
from fastapi import FastAPI
from gymfleet_contracts.frames import MAX_FRAME_BYTES

from gymfleet_kit.http_protocol import BoundedProtocol

# Well above every client's keep-alive expiry, so that the client closes first
# and no request is sent into a connection that the server is closing.
KEEP_ALIVE_S = 75


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket, or exit with one line on stderr and exit code 2."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        reason = "is in use by another process" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error}"
        sys.stderr.write(f"error: {host}:{port} {reason}; choose another port\n")
        raise SystemExit(2) from None
    return listener


def calm_collector() -> None:
    """Freeze imported objects, which are never freed: the collector need not visit them every few hundred calls."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


class _Server(uvicorn.Server):
    """Await `drain` after the first SIGTERM while still serving; SIGINT or a second SIGTERM ends at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]] | None) -> None:
        super().__init__(config)
        self._drain = drain
        self._asked = False
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal and leave the work to the loop, because this runs between any two bytecodes."""
        if self._drain is None or sig != signal.SIGTERM or self._asked:
            super().handle_exit(sig, frame)
        else:
            self._asked = True

    async def on_tick(self, counter: int) -> bool:
        """Handle the noted signals; uvicorn calls this ten times a second while it serves."""
        if self._asked and self._draining is None and self._drain is not None:
            self._draining = asyncio.create_task(self._drained(self._drain))
        return await super().on_tick(counter)

    async def _drained(self, drain: Callable[[], Awaitable[None]]) -> None:
        try:
            await drain()
        finally:
            self.should_exit = True


def server_config(app: FastAPI, *, grace_s: int = 10) -> uvicorn.Config:
    """Return the uvicorn configuration of all our apps; running requests have `grace_s` to end at shutdown."""
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=BoundedProtocol,
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,  # it costs a zlib state per socket, and processor time on the hot path
        log_config=None,
        access_log=False,
        proxy_headers=False,  # do not trust a header for who calls or under which name
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=grace_s,
        backlog=4096,
    )


def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    more_ports: Sequence[int] = (),
    drain: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests end. On SIGTERM, await `drain` first.

    The app also listens on `more_ports`; `scope["server"]` holds the port on which a request came in.
    """
    listeners = [bind(host, number) for number in (port, *more_ports)]
    calm_collector()
    config = server_config(app)
    # uvicorn shuts down at the signal and then raises it again for the previous handler.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    _Server(config, drain).run(sockets=listeners)
