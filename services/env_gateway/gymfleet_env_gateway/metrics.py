"""The gateway's metrics: calls per environment and tenant, latencies, queues, rejections, recoveries.

Labels are names of environments that the fleet serves and of tenants that the gateway
knows, never a caller's text: a client cannot create series.
"""

import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)

OpenSessions = Callable[[], Iterable[tuple[str, str, int]]]
"""Open sessions as (environment, tenant, number)."""
FreeSlots = Callable[[], Iterable[tuple[str, int]]]
"""Sessions that can still be opened, as (environment, number)."""


class Metrics:
    """Counters, latencies and gauges of one gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        calls = Counter(
            "gymfleet_gateway_calls", "Calls by outcome", ["env", "tenant", "op", "outcome"], registry=registry
        )
        seconds = Histogram(
            "gymfleet_gateway_call_seconds", "Time to an answer", ["env", "op"], buckets=_BUCKETS, registry=registry
        )
        waiting = Gauge("gymfleet_gateway_queue_length", "Opens that wait for a slot", ["env"], registry=registry)
        waited = Histogram(
            "gymfleet_gateway_queue_wait_seconds", "Wait for a slot", ["env"], buckets=_BUCKETS, registry=registry
        )
        rejections = Counter(
            "gymfleet_gateway_rejections", "Calls turned away", ["env", "tenant", "reason"], registry=registry
        )
        recoveries = Counter(
            "gymfleet_gateway_recoveries", "Sessions sought after a loss", ["env", "outcome"], registry=registry
        )
        recovery_seconds = Histogram(
            "gymfleet_gateway_recovery_seconds", "Time of a recovery", ["env"], buckets=_BUCKETS, registry=registry
        )
        self.replicas = Gauge("gymfleet_gateway_replicas", "Replicas by state", ["state"], registry=registry)
        self.replica_losses = Counter("gymfleet_gateway_replica_losses", "Replicas that died", registry=registry)
        self.unjournaled = Counter(
            "gymfleet_gateway_unjournaled_steps", "Steps whose session has no journal", registry=registry
        )
        self.agentgym_sessions = Gauge(
            "gymfleet_gateway_agentgym_sessions", "Ids of AgentGym clients", ["env"], registry=registry
        )
        # `labels` takes a lock and builds a key; on the hot path a cached child is looked up instead.
        self._count = cache(lambda env, tenant, op, outcome: calls.labels(env, tenant, op, outcome).inc)
        self._observe = cache(lambda env, op: seconds.labels(env, op).observe)
        self._reject = cache(lambda env, tenant, reason: rejections.labels(env, tenant, reason).inc)
        self._queue = cache(lambda env: (waiting.labels(env).set, waited.labels(env).observe))
        self._recovered = cache(
            lambda env, outcome: (recoveries.labels(env, outcome).inc, recovery_seconds.labels(env).observe)
        )

    def record(self, env: str, tenant: str, op: str, outcome: str, started: float) -> None:
        """Count one finished call; `started` is `time.perf_counter()` at its start."""
        self._count(env, tenant, op, outcome)()
        self._observe(env, op)(time.perf_counter() - started)

    def rejected(self, env: str, tenant: str, reason: str) -> None:
        """Count one call rejected with 403 or 429; `env` is empty where the limit is the tenant's."""
        self._reject(env, tenant, reason)()

    def queued(self, env: str, number: int) -> None:
        """Set how many opens wait for a slot now."""
        self._queue(env)[0](number)

    def waited(self, env: str, seconds: float) -> None:
        """Count one open that got its slot after `seconds` in the queue."""
        self._queue(env)[1](seconds)

    def recovered(self, env: str, outcome: str, seconds: float) -> None:
        """Count one finished search for a lost session."""
        count, observe = self._recovered(env, outcome)
        count()
        observe(seconds)

    def watch_sessions(self, sessions: OpenSessions, slots: FreeSlots) -> None:
        """Call these functions at each scrape for the gauges of open sessions and free slots."""
        self._registry.register(_Sessions(sessions, slots))


class _Sessions(Collector):
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
