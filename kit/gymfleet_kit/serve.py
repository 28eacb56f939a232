"""Run an app with uvicorn: one clear line for a port in use, clean exit on SIGINT and SIGTERM."""

import errno
import signal
import socket
import sys
from typing import NoReturn

import uvicorn
from fastapi import FastAPI

# Well over every client's keep-alive expiry, so that the client closes first
# and no request is sent into a connection that the server is closing.
KEEP_ALIVE_S = 75


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or one line on stderr and exit code 2."""
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


def _end(*_: object) -> NoReturn:
    raise SystemExit(0)


def serve(app: FastAPI, *, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests end."""
    listener = bind(host, port)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=4 * 1024 * 1024,
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=10,
        backlog=4096,
    )
    # uvicorn shuts down at the signal and then raises it again for who was there before.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    uvicorn.Server(config).run(sockets=[listener])
