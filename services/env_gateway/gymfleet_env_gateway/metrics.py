"""The gateway's metrics: calls per environment and tenant, latencies, queues, rejections, recoveries.

Labels are names of environments that the fleet serves and of tenants that the gateway
knows, never a caller's text: a client cannot create series.
"""

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)

CALLS: Final = Counter("gymfleet_gateway_calls", "Calls by outcome", ["env", "tenant", "op", "outcome"])
CALL_SECONDS: Final = Histogram("gymfleet_gateway_call_seconds", "Time to an answer", ["env", "op"], buckets=_BUCKETS)
QUEUE_LENGTH: Final = Gauge("gymfleet_gateway_queue_length", "Opens that wait for a slot", ["env"])
QUEUE_WAIT_SECONDS: Final = Histogram(
    "gymfleet_gateway_queue_wait_seconds", "Wait for a slot", ["env"], buckets=_BUCKETS
)
REJECTIONS: Final = Counter("gymfleet_gateway_rejections", "Calls turned away", ["env", "tenant", "reason"])
"""`env` is empty where the limit is the tenant's."""
RECOVERIES: Final = Counter("gymfleet_gateway_recoveries", "Sessions sought after a loss", ["env", "outcome"])
RECOVERY_SECONDS: Final = Histogram(
    "gymfleet_gateway_recovery_seconds", "Time of a recovery", ["env"], buckets=_BUCKETS
)
REPLICAS: Final = Gauge("gymfleet_gateway_replicas", "Replicas by state", ["state"])
REPLICA_LOSSES: Final = Counter("gymfleet_gateway_replica_losses", "Replicas that died")
UNJOURNALED: Final = Counter("gymfleet_gateway_unjournaled_steps", "Steps whose session has no journal")
AGENTGYM_SESSIONS: Final = Gauge("gymfleet_gateway_agentgym_sessions", "Ids of AgentGym clients", ["env"])

OpenSessions = Callable[[], Iterable[tuple[str, str, int]]]
"""Open sessions as (environment, tenant, number)."""
FreeSlots = Callable[[], Iterable[tuple[str, int]]]
"""Sessions that can still be opened, as (environment, number)."""

# `labels` takes a lock and builds a key; on the hot path a cached child is looked up instead.
_count: Final = cache(lambda env, tenant, op, outcome: CALLS.labels(env, tenant, op, outcome).inc)
_observe: Final = cache(lambda env, op: CALL_SECONDS.labels(env, op).observe)


def record_call(env: str, tenant: str, op: str, outcome: str, started: float) -> None:
    """Count one finished call; `started` is `time.perf_counter()` at its start."""
    _count(env, tenant, op, outcome)()
    _observe(env, op)(time.perf_counter() - started)


class SessionGauges(Collector):
    """Gauges that are read at each scrape rather than stored: they cannot drift."""

    def __init__(self, sessions: OpenSessions, slots: FreeSlots) -> None:
        self._read_sessions = sessions
        self._read_slots = slots

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the current figures."""
        sessions, slots = self.describe()
        for env, tenant, number in self._read_sessions():
            sessions.add_metric([env, tenant], number)
        for env, number in self._read_slots():
            slots.add_metric([env], number)
        return sessions, slots

    def describe(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        """Return the gauges' names for the registry, without reading any figures."""
        return (
            GaugeMetricFamily("gymfleet_gateway_open_sessions", "Open sessions in the fleet", labels=["env", "tenant"]),
            GaugeMetricFamily("gymfleet_gateway_free_slots", "Sessions that can still be opened", labels=["env"]),
        )
