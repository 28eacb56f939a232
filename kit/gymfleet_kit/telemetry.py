"""OpenTelemetry spans if an endpoint for them is configured; otherwise almost no work.

`configure_tracing` reads the standard `OTEL_*` variables. Spans are created for traces whose
`traceparent` is marked as sampled; the parent is always passed explicitly, because the calls of one
socket belong to many traces. Attributes are ids and outcomes, never actions or keys.
"""

import os
import re
import sys
from asyncio import CancelledError
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from gymfleet_kit.problems import ServiceError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span as OpenTelemetrySpan
    from opentelemetry.trace import SpanKind

R = TypeVar("R")

TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_SAMPLED: Final = frozenset("13579bdf")  # the last digit of the flags, with bit 0 set
_PREFIX: Final = "gymfleet."

_provider: "TracerProvider | None" = None


class Span:
    """A piece of work. This class only passes the trace on and records nothing.

    As a context manager it ends with the block; its outcome is "ok", or the type of
    the problem that was raised from the block.
    """

    __slots__ = ("trace",)

    def __init__(self, trace: str) -> None:
        self.trace = trace
        """The `traceparent` to pass on; empty when the work belongs to no trace."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """End the span: the work is done, or failed with `error`. Only the first call counts."""

    def ending(self, done: Callable[[R], None]) -> Callable[[R], None]:
        """Return a `done` that ends this span first, for work that reports a result or an exception by a call."""
        return done


class _Recorded(Span):
    """A span that is exported."""

    __slots__ = ("_span",)

    def __init__(self, span: "OpenTelemetrySpan") -> None:
        context = span.get_span_context()
        super().__init__(f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}")
        self._span = span

    def end(self, error: BaseException | None = None) -> None:
        if not self._span.is_recording():
            return
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - optional

        self._span.set_attribute(f"{_PREFIX}outcome", "ok" if error is None else _outcome(error))
        if error is not None:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()

    def ending(self, done: Callable[[R], None]) -> Callable[[R], None]:
        def end_and_answer(result: R) -> None:
            self.end(result if isinstance(result, BaseException) else None)
            done(result)

        return end_and_answer


class RequestSpan(_Recorded):
    """A request to an HTTP server."""

    __slots__ = ()

    def answered(self, method: str, route: str | None, status: int) -> None:
        """Name the span after the route's pattern, because paths hold session ids and names must be few."""
        self._span.update_name(f"{method} {route}" if route else method)
        self._span.set_attribute("http.request.method", method)
        self._span.set_attribute("http.response.status_code", status)
        if route is not None:
            self._span.set_attribute("http.route", route)


def span(name: str, trace: str | None, **attributes: str | int) -> Span:
    """Begin a span under `trace`: recorded when tracing is on and the trace is sampled.

    A `trace` that is not a valid `traceparent` counts as none, because it may come from any caller.
    """
    if not trace:
        return Span("")
    if not TRACEPARENT.fullmatch(trace):
        return Span("")
    if _provider is None or trace[-1] not in _SAMPLED:
        return Span(trace)
    return _Recorded(_start(name, trace, None, {f"{_PREFIX}{key}": value for key, value in attributes.items()}))


def request_span(method: str, trace: str | None) -> RequestSpan | None:
    """Return the span of an HTTP request, or None if it is not recorded.

    A request without a trace begins one, if the sampler selects it, unless it only
    reads: otherwise most traces would be of probes and scrapes.
    """
    from_caller = trace is not None and TRACEPARENT.fullmatch(trace) is not None
    if _provider is None or (trace is not None and from_caller and trace[-1] not in _SAMPLED):
        return None
    if not from_caller and method == "GET":
        return None
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - optional

    started = _start(method, trace if from_caller else None, SpanKind.SERVER, {})
    return RequestSpan(started) if started.is_recording() else None


def is_sampled(trace_id: str) -> bool:
    """Return the configured sampler's decision for a new trace; False when tracing is off."""
    if _provider is None:
        return False
    from opentelemetry.sdk.trace.sampling import Decision  # noqa: PLC0415 - optional

    decision = _provider.sampler.should_sample(None, int(trace_id, 16), "gymfleet").decision
    return decision is Decision.RECORD_AND_SAMPLE


def attach(trace: str) -> Any:
    """Make `trace` OpenTelemetry's current one, for libraries that use it; return the token for `detach`."""
    if _provider is None:
        return None
    from opentelemetry import context  # noqa: PLC0415 - optional

    return context.attach(_parent(trace))


def detach(token: Any) -> None:
    """Undo `attach`."""
    if token is not None:
        from opentelemetry import context  # noqa: PLC0415 - optional

        context.detach(token)


def configure_tracing(service: str) -> None:
    """Export spans over OTLP/HTTP when `OTEL_EXPORTER_OTLP_ENDPOINT` is set; call once, in `main`.

    Without the packages of `gymfleet[otel]`, exit with one line on stderr and exit code 2.
    """
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    switched_off = (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    given = next((name for name in names if os.environ.get(name)), None)
    if given is None or switched_off:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        sys.stderr.write(f"error: {given} is set, but {error.name} is not installed; install gymfleet[otel]\n")
        raise SystemExit(2) from None
    from opentelemetry.trace import set_tracer_provider  # noqa: PLC0415

    set_tracer_provider(export_to(BatchSpanProcessor(OTLPSpanExporter()), service))  # for libraries' own spans


def export_to(processor: "SpanProcessor", service: str) -> "TracerProvider":
    """Send this process's spans to `processor`; spans that still wait there are sent when the process ends."""
    global _provider  # noqa: PLW0603 - one per process, as OpenTelemetry's own
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - optional
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415

    own_name = os.environ.get("OTEL_SERVICE_NAME")
    _provider = TracerProvider(resource=Resource.create({"service.name": own_name or f"gymfleet-{service}"}))
    _provider.add_span_processor(processor)
    return _provider


def _start(
    name: str, parent: str | None, kind: "SpanKind | None", attributes: dict[str, str | int]
) -> "OpenTelemetrySpan":
    from opentelemetry.context import Context  # noqa: PLC0415 - optional
    from opentelemetry.trace import SpanKind  # noqa: PLC0415

    assert _provider is not None  # noqa: S101 - asked by the callers
    context = Context() if parent is None else _parent(parent)
    tracer = _provider.get_tracer("gymfleet")
    return tracer.start_span(name, context, kind or SpanKind.INTERNAL, attributes=attributes)


def _parent(trace: str) -> Any:
    from opentelemetry.context import Context  # noqa: PLC0415 - optional
    from opentelemetry.trace import (  # noqa: PLC0415
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    _, trace_id, span_id, flags = trace.split("-")
    remote = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(remote), Context())


def _outcome(error: BaseException) -> str:
    if isinstance(error, CancelledError):
        return "cancelled"
    if isinstance(error, ServiceError):
        return error.problem().type.rsplit("/", 1)[-1]
    return type(error).__name__
