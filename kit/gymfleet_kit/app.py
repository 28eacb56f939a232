"""The common part of every service's HTTP app: problems, health, readiness, metrics and body limit."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from fastapi import FastAPI, Response
from gymfleet_contracts import problems
from gymfleet_contracts.problems import Problem
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gymfleet_kit.access import AccessMiddleware, AccessRules
from gymfleet_kit.openapi import complete_openapi
from gymfleet_kit.problem_handlers import install_problem_handlers, problem_response
from gymfleet_kit.problems import PayloadTooLarge, ServiceError, TryLater, problem_responses
from gymfleet_kit.trace import TraceMiddleware

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[Any]]
Readiness = Callable[[], Awaitable[None]]
Measure = Callable[[], Awaitable[Iterable[Metric]]]
DEFAULT_MAX_BODY_BYTES: Final = 16 * 1024 * 1024
READY_TIMEOUT_S: Final = 5.0
"""Time limit of the readiness check at a scrape: Prometheus waits ten seconds for the whole scrape."""


_FOR_THIS_MACHINE: Final = AccessRules()


class NotReady(TryLater):
    """Raised by a readiness probe; `detail` says which part is missing."""

    type = problems.UNAVAILABLE
    title = "The service is not ready"


class _BodyLimit:
    """Refuse bodies larger than a limit, whether or not they announce their length."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max:
            error = self._error()
            await problem_response(error.problem())(scope, receive, send)
            return
        seen = 0
        answered = False

        async def limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max:
                raise self._error()
            return message

        async def guarded(message: Message) -> None:
            nonlocal answered
            # FastAPI turns anything that interrupts its reading into a 400; the 413 below replaces it.
            if seen <= self._max or answered:
                answered = True
                await send(message)

        try:
            await self._app(scope, limited, guarded)
        except PayloadTooLarge:
            if seen <= self._max:
                raise
        if seen > self._max and not answered:
            await problem_response(self._error().problem())(scope, receive, send)

    def _error(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body exceeds {self._max} bytes", limit_bytes=self._max)


def create_app(
    title: str,
    *,
    access: AccessRules = _FOR_THIS_MACHINE,
    lifespan: Lifespan | None = None,
    ready: Readiness | None = None,
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    registry: CollectorRegistry = REGISTRY,
    measure: Measure | None = None,
) -> FastAPI:
    """Return an app with `/healthz`, `/readyz` and `/metrics`. `ready` raises `NotReady` until the engine answers.

    `access` sets who may call; by default, only this machine, and no web page of another host.
    `measure` reads further metrics at each scrape; it must return within seconds and must not raise.
    """
    app = FastAPI(
        title=title,
        lifespan=lifespan,
        # FastAPI's documentation pages load scripts from third-party servers, which could read our users' keys.
        docs_url=None,
        redoc_url=None,
        responses={
            422: {
                "model": Problem,
                "description": "The request is not valid",
                "content": {problems.PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }
        },
    )
    app.add_middleware(_BodyLimit, max_body_bytes=max_body_bytes)
    app.add_middleware(TraceMiddleware)
    app.add_middleware(AccessMiddleware, rules=access)  # outermost, so that nothing of a refused request is read
    install_problem_handlers(app)
    complete_openapi(app)

    @app.get("/healthz", tags=["operations"])
    async def healthz() -> dict[str, str]:
        """The process runs and its event loop turns."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["operations"], responses=problem_responses(NotReady))
    async def readyz() -> dict[str, str]:
        """The service can do its work now."""
        if ready is not None:
            await ready()
        return {"status": "ready"}

    @app.get("/metrics", tags=["operations"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Prometheus text."""
        state = await _is_ready(ready)
        ready_now = GaugeMetricFamily("gymfleet_ready", "1 while the service can do its work, as /readyz says", state)
        read = CollectorRegistry()
        read.register(_Read([ready_now, *([] if measure is None else await measure())]))
        return Response(generate_latest(registry) + generate_latest(read), media_type=CONTENT_TYPE_LATEST)

    return app


class _Read(Collector):
    """Metrics that were read for one scrape."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics as they were read."""
        return self._metrics


async def _is_ready(ready: Readiness | None) -> bool:
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            if ready is not None:
                await ready()
    except (ServiceError, TimeoutError):
        return False
    return True
