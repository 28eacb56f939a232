"""The trace id of the work in hand: W3C `traceparent`, carried by HTTP headers and stream records."""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

HEADER: Final = "traceparent"
_FORM: Final = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_current: ContextVar[str | None] = ContextVar("traceparent", default=None)


def current_trace() -> str | None:
    """The `traceparent` to send along, None outside of any traced work."""
    return _current.get()


def new_trace() -> str:
    """Begin a trace."""
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


@contextmanager
def traced(trace: str | None) -> Iterator[str]:
    """Work under `trace`, or under a new one where it is absent or malformed; logs carry its id."""
    trace = trace if trace is not None and _FORM.fullmatch(trace) else new_trace()
    token = _current.set(trace)
    try:
        with structlog.contextvars.bound_contextvars(trace_id=trace.split("-")[1]):
            yield trace
    finally:
        _current.reset(token)


class TraceMiddleware:
    """Serve each HTTP request under the trace that its header names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Web sockets carry many sessions: no trace is theirs."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = dict(scope["headers"]).get(HEADER.encode(), b"").decode("latin-1")
        with traced(header or None):
            await self._app(scope, receive, send)
