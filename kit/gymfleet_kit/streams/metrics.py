"""Prometheus metrics of the streams."""

from typing import Final

from prometheus_client import Counter

HANDLED: Final = Counter(
    "gymfleet_stream_handled", "Messages handled and acknowledged by this process", ["stream", "group"]
)
FAILED: Final = Counter("gymfleet_stream_failed", "Handlings that raised; the message stays", ["stream", "group"])
BURIED: Final = Counter("gymfleet_stream_buried", "Messages moved to the dead letters", ["stream", "group"])
