"""The gateway's HTTP app."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from gymfleet_kit.app import create_app
from prometheus_client import REGISTRY, CollectorRegistry

from gymfleet_env_gateway.access import Access
from gymfleet_env_gateway.fronts.agentgym import install_agentgym
from gymfleet_env_gateway.fronts.agentgym_sessions import AgentGymSessions
from gymfleet_env_gateway.ids import SessionIds
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.relay import Relay
from gymfleet_env_gateway.routes import environments, sessions, stream
from gymfleet_env_gateway.routing import Fleet
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.state import Gateway


def gateway_app(settings: GatewaySettings, *, registry: CollectorRegistry = REGISTRY) -> FastAPI:
    """The app; its lifespan probes every replica once before it serves."""
    metrics = Metrics(registry)
    fleet = Fleet(settings, metrics)
    ids = SessionIds(settings.secret.get_secret_value())
    relay = Relay(fleet, ids, metrics, settings)
    agentgym = AgentGymSessions(fleet, relay, metrics, settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await fleet.start()
        sweeper = asyncio.create_task(agentgym.sweep())
        try:
            yield
        finally:
            sweeper.cancel()
            await asyncio.wait([sweeper])
            await fleet.aclose()

    app = create_app("gymfleet env gateway", lifespan=lifespan, ready=fleet.check_ready, registry=registry)
    app.state.gateway = Gateway(
        settings=settings, access=Access(settings.api_key), metrics=metrics, fleet=fleet, relay=relay
    )
    app.include_router(environments.router)
    app.include_router(sessions.router)
    app.include_router(stream.router)
    if settings.serves_agentgym:
        install_agentgym(app, agentgym)
    return app
