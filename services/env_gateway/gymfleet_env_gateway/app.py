"""The gateway's HTTP app."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from gymfleet_kit.app import NotReady, create_app
from gymfleet_kit.direct_route import direct_first
from gymfleet_kit.streams import connect, disconnect
from prometheus_client import REGISTRY, CollectorRegistry

from gymfleet_env_gateway.access import Access
from gymfleet_env_gateway.admission import Admission
from gymfleet_env_gateway.fronts.agentgym.app import install_agentgym
from gymfleet_env_gateway.fronts.agentgym.sessions import AgentGymSessions
from gymfleet_env_gateway.fronts.mcp.app import install_mcp
from gymfleet_env_gateway.fronts.openenv.app import install_openenv
from gymfleet_env_gateway.gateway_membership import keep_counting
from gymfleet_env_gateway.journal import Journal
from gymfleet_env_gateway.metrics import SessionGauges
from gymfleet_env_gateway.redis_store import make_store
from gymfleet_env_gateway.replica_registry import ReplicaRegistry
from gymfleet_env_gateway.routes import environments, play, seats, stream, tickets
from gymfleet_env_gateway.routes.sessions import install_sessions
from gymfleet_env_gateway.session_directory import SessionDirectory
from gymfleet_env_gateway.session_ids import SessionIds
from gymfleet_env_gateway.session_proxy import SessionProxy
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.state import Gateway
from gymfleet_env_gateway.streams import Streams
from gymfleet_env_gateway.tickets import Tickets


def build_app(settings: GatewaySettings, *, registry: CollectorRegistry = REGISTRY) -> FastAPI:
    """Build the app; its lifespan probes every replica once before it serves."""
    replicas = ReplicaRegistry(settings)
    registry.register(SessionGauges(replicas.open_sessions, replicas.slots))
    ids = SessionIds(*(secret.get_secret_value() for secret in (settings.secret, *settings.previous_secrets)))
    redis = None if settings.redis_url is None else connect(str(settings.redis_url))
    journal = None if redis is None else Journal(redis, timeout_s=settings.journal_timeout_s)
    directory = SessionDirectory(replicas, journal, settings)
    admission = Admission(replicas, settings)
    replicas.on_news(admission.freed)
    proxy = SessionProxy(replicas, ids, directory, admission, settings)
    agentgym = AgentGymSessions(replicas, proxy, settings, make_store(redis, "agentgym"))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if redis is not None and journal is not None:
                stack.push_async_callback(disconnect, redis)
                stack.push_async_callback(journal.aclose)
                await journal.start()
                await stack.enter_async_context(_running(keep_counting(redis, admission.set_gateways)))
            stack.push_async_callback(replicas.aclose)
            await replicas.start()
            stack.push_async_callback(directory.aclose)
            await stack.enter_async_context(_running(agentgym.count()))
            yield

    streams = Streams()

    async def ready() -> None:
        if streams.finishing:
            raise NotReady("the gateway is on its way out")
        await replicas.check_ready()

    app = create_app(
        "gymfleet env gateway",
        access=settings.rules(),
        lifespan=lifespan,
        ready=ready,
        max_body_bytes=settings.max_body_bytes,
        registry=registry,
    )
    app.state.gateway = Gateway(
        settings=settings,
        access=Access(settings.api_key, settings.tenants, Tickets(make_store(redis, "tickets"))),
        registry=replicas,
        proxy=proxy,
        streams=streams,
    )
    app.include_router(environments.router)
    install_sessions(app)
    app.include_router(stream.router)
    app.include_router(play.router)
    app.include_router(tickets.router)
    app.include_router(seats.router)
    if settings.agentgym:
        install_agentgym(app, agentgym)
    if settings.mcp:
        install_mcp(app)
    if settings.openenv:
        install_openenv(app, app.state.gateway, make_store(redis, "openenv"))
    direct_first(app)
    return app


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` in the background and cancel it at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
