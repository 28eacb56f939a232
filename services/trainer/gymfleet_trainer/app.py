"""The trainer's HTTP app, served by the process that trains."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import uvicorn
from fastapi import FastAPI
from gymfleet_kit.access import AccessRules
from gymfleet_kit.app import NotReady, create_app
from gymfleet_kit.serve import server_config

from gymfleet_trainer.routes import run
from gymfleet_trainer.run.progress import Reporter


def create(reporter: Reporter, access: AccessRules) -> FastAPI:
    """Return an app with health, readiness (the run has begun a phase), metrics and `GET /v1/run`."""

    async def ready() -> None:
        if reporter.current.phase == "starting":
            raise NotReady(reporter.current.message or "the run is starting")

    app = create_app("gymfleet trainer", access=access, ready=ready)
    app.state.reporter = reporter
    app.include_router(run.router)
    return app


class _Server(uvicorn.Server):
    """Run uvicorn within the loop of another program, which handles the signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the program's signal handlers alone."""
        yield


@contextlib.asynccontextmanager
async def serving(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Serve HTTP while the body runs."""
    server = _Server(server_config(app, grace_s=1))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await task
