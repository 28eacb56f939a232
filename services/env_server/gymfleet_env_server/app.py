"""The environment server's app: the session API over a pool of shards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from gymfleet_contracts.frames import Op
from gymfleet_kit.access import AccessRules
from gymfleet_kit.app import NotReady, create_app
from gymfleet_kit.direct_route import direct_first
from gymfleet_kit.problems import ServiceError
from gymfleet_kit.session_api.routes import install_session_routes
from prometheus_client import CollectorRegistry

from gymfleet_env_server.errors import ShardUnavailable
from gymfleet_env_server.routes import environments, load, play, stream
from gymfleet_env_server.shards.pool import ShardPool

PROBE_TIMEOUT_S = 10.0


def build_app(pool: ShardPool, access: AccessRules) -> FastAPI:
    """Build an app over `pool`, which must have been started; the app ends it on shutdown."""
    registry = CollectorRegistry()
    registry.register(pool.metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await pool.attach()
        try:
            yield
        finally:
            await pool.aclose()

    async def ready() -> None:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await pool.probe()
        except ServiceError as error:
            raise NotReady(error.detail) from None
        except TimeoutError:
            raise NotReady(f"no answer from every shard within {PROBE_TIMEOUT_S:g} s") from None

    app = create_app("gymfleet environment server", access=access, lifespan=lifespan, ready=ready, registry=registry)
    app.state.pool = pool
    install_session_routes(app, lambda _: pool, dict.fromkeys((Op.OPEN, Op.FORK), (ShardUnavailable,)))
    for module in (environments, load, stream, play):
        app.include_router(module.router)
    direct_first(app)
    return app
