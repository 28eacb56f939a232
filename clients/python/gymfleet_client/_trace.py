"""The application's trace, sent with every call if the application uses OpenTelemetry."""

import sys
from typing import Any, Final

HEADER: Final = "traceparent"


def current_traceparent() -> str:
    """Return the W3C `traceparent` of the current span; empty if there is none.

    This imports nothing, because an application that traces has already imported OpenTelemetry.
    """
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is None:
        return ""
    context = api.get_current_span().get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
