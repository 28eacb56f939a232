"""The trace id of the current work: W3C `traceparent`, carried by HTTP headers and stream records."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gymfleet_kit.telemetry import TRACEPARENT, RequestSpan, attach, detach, is_sampled, request_span, span

HEADER: Final = "traceparent"
_HEADER: Final = HEADER.encode()
_DRAW: Final = (
    random.Random()
)  # a separate generator, unaffected by other seeds; ids are no secrets, and system randomness costs a call each
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def current_trace() -> str | None:
    """Return the `traceparent` to pass on, or None outside traced work."""
    return _current.get()


def new_trace(*, sampled: bool | None = None) -> str:
    """Begin a trace; without `sampled`, the configured sampler decides whether its spans are recorded."""
    drawn = f"{_DRAW.getrandbits(192):048x}"
    trace_id = drawn[:32]
    flags = "01" if (is_sampled(trace_id) if sampled is None else sampled) else "00"
    return f"00-{trace_id}-{drawn[32:]}-{flags}"


@contextmanager
def traced(trace: str | None) -> Iterator[str]:
    """Run a block under `trace`, or under a new one if it is absent or malformed; logs carry its id."""
    trace = trace if trace is not None and TRACEPARENT.fullmatch(trace) else new_trace()
    token, otel_token = _current.set(trace), attach(trace)
    try:
        yield trace
    finally:
        detach(otel_token)
        _current.reset(token)


def enter_trace(trace: str) -> None:
    """Use `trace` until the end of this task, which serves one call. A malformed trace is ignored."""
    if TRACEPARENT.fullmatch(trace):
        _current.set(trace)


class Working:
    """The context manager that `working` returns; it begins the span when the block begins."""

    __slots__ = ("_attributes", "_name", "_span", "_token")

    def __init__(self, name: str, attributes: dict[str, str | int]) -> None:
        self._name = name
        self._attributes = attributes
        self._token: Token[str | None] | None = None

    def __enter__(self) -> None:
        trace = _current.get()
        self._span = span(self._name, trace, **self._attributes)
        if trace and self._span.trace != trace:
            self._token = _current.set(self._span.trace)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _current.reset(self._token)
        self._span.end(error)


def working(name: str, **attributes: str | int) -> Working:
    """Run a block as a span of the current trace; within it, `current_trace` names the span as the parent."""
    return Working(name, attributes)


class TraceMiddleware:
    """Serve each HTTP request under the trace that its header names, and record it as a span."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Trace a request, but not a WebSocket, which carries many sessions and has no single trace."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), None)
        recorded = request_span(scope["method"], header)
        if recorded is not None:
            await self._recorded(recorded, scope, receive, send)
            return
        trace = header if header and TRACEPARENT.fullmatch(header) else new_trace(sampled=False)
        token, otel_token = _current.set(trace), attach(trace)
        try:
            await self._app(scope, receive, send)
        finally:
            detach(otel_token)
            _current.reset(token)

    async def _recorded(self, request: RequestSpan, scope: Scope, receive: Receive, send: Send) -> None:
        status = 500  # the server's answer if the app raises

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with request, traced(request.trace):
            try:
                await self._app(scope, receive, watched)
            finally:
                request.answered(scope["method"], getattr(scope.get("route"), "path", None), status)
