"""What the gateway counts, per environment."""

import time
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class Metrics:
    """Counters, latencies and gauges of one gateway process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        calls = Counter("gymfleet_gateway_calls", "Calls by outcome", ["env", "op", "outcome"], registry=registry)
        seconds = Histogram(
            "gymfleet_gateway_call_seconds", "Time to an answer", ["env", "op"], buckets=_BUCKETS, registry=registry
        )
        self.sessions = Gauge(
            "gymfleet_gateway_open_sessions", "Opened here and neither closed nor expired", ["env"], registry=registry
        )
        self.replicas = Gauge("gymfleet_gateway_replicas", "Replicas by state", ["state"], registry=registry)
        self.replica_losses = Counter("gymfleet_gateway_replica_losses", "Replicas that died", registry=registry)
        self.agentgym_sessions = Gauge(
            "gymfleet_gateway_agentgym_sessions", "Ids of AgentGym clients", ["env"], registry=registry
        )
        # `labels` takes a lock and builds a key; on the hot path a cached child is looked up instead.
        self._count = cache(lambda env, op, outcome: calls.labels(env, op, outcome).inc)
        self._observe = cache(lambda env, op: seconds.labels(env, op).observe)

    def record(self, env: str, op: str, outcome: str, started: float) -> None:
        """One finished call; `started` is `time.perf_counter()` at its begin."""
        self._count(env, op, outcome)()
        self._observe(env, op)(time.perf_counter() - started)
