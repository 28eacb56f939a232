"""Structured logs: JSON lines on stderr, event names `noun.verb`, ids bound."""

import logging
import sys
import warnings

import structlog
from structlog.typing import EventDict

from gymfleet_kit.trace import current_trace


def configure_logs(service: str, *, level: str = "INFO", json: bool = True) -> None:
    """Set structlog and the standard library's loggers to one format; call once, in `main`."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_trace_id,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ],
    )
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # What models write is parsed as Python in places; each warning would be a line that no operator can act on.
    warnings.filterwarnings("ignore", category=SyntaxWarning, module="<(unknown|string)>")
    structlog.contextvars.bind_contextvars(service=service)


def add_trace_id(_: object, __: str, event: EventDict) -> EventDict:
    """Add the trace id. It is looked up only for lines that are written, instead of being bound for each request."""
    if (trace := current_trace()) is not None:
        event.setdefault("trace_id", trace.split("-")[1])
    return event
