"""The rollout service's app: the stream worker and the HTTP routes."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Depends, FastAPI
from gymfleet_kit.app import create_app

from gymfleet_rollout.backend import InferenceBackend
from gymfleet_rollout.model import ModelPlace
from gymfleet_rollout.routes import jobs, policy
from gymfleet_rollout.routes.policy import control_port
from gymfleet_rollout.service import RolloutService
from gymfleet_rollout.settings import RolloutSettings


def build_app(
    settings: RolloutSettings, model: ModelPlace, backend: InferenceBackend[Any], on_failure: Callable[[], None]
) -> FastAPI:
    """Return the app; engine and worker run from start-up to shutdown, or until they fail for good."""
    service = RolloutService(settings, model, backend, on_failure)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = create_app(
        "gymfleet rollout",
        access=settings.rules(),
        lifespan=lifespan,
        ready=service.check_ready,
        max_body_bytes=settings.max_body_bytes,
    )
    app.state.service = service
    app.include_router(jobs.router)
    app.include_router(jobs.checks)
    app.include_router(policy.router)
    app.include_router(policy.control, dependencies=[Depends(control_port(settings.control_port))])
    return app
