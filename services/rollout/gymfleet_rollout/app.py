"""The rollout service's app: the stream worker beside the HTTP surface."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from gymfleet_kit.app import create_app

from gymfleet_rollout.routes import jobs, policy
from gymfleet_rollout.service import RolloutService
from gymfleet_rollout.settings import RolloutSettings


def build_app(settings: RolloutSettings, model_path: Path) -> FastAPI:
    """The app; engine and worker run from start-up to shutdown."""
    service = RolloutService(settings, model_path)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = create_app(
        "gymfleet rollout", lifespan=lifespan, ready=service.check_ready, max_body_bytes=settings.max_body_bytes
    )
    app.state.service = service
    app.include_router(jobs.router)
    app.include_router(policy.router)
    return app
