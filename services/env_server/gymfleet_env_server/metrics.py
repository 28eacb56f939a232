"""Counts per environment: collected in the shards, summed in the front, shown at `/metrics`."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gymfleet_env_server.shards.channel import Tally

BOUNDS_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
DIED: Final = "died"
HUNG: Final = "hung"
MEMORY: Final = "memory"
CAUSES: Final = (DIED, HUNG, MEMORY)
"""Reasons for which a shard is restarted."""


def new_tally() -> Tally:
    """Return a tally with all counts at zero."""
    return Tally(buckets=[0] * (len(BOUNDS_S) + 1))


def count_step(tally: Tally, duration_s: float) -> None:
    """Count one step and its duration."""
    tally.steps += 1
    tally.seconds += duration_s
    tally.buckets[bisect_left(BOUNDS_S, duration_s)] += 1


class SessionMetrics(Collector):
    """The front's sums, as Prometheus metrics."""

    def __init__(self, environments: tuple[str, ...]) -> None:
        self._totals = {name: new_tally() for name in environments}
        self._open: dict[int, dict[str, dict[str, int]]] = {}
        self._restarts = dict.fromkeys(CAUSES, 0)

    def sessions(self) -> dict[str, dict[str, int]]:
        """Return open sessions by environment and owner, as the shards last reported them."""
        found: dict[str, dict[str, int]] = {}
        for shard in self._open.values():
            for env, owners in shard.items():
                counts = found.setdefault(env, {})
                for owner, count in owners.items():
                    counts[owner] = counts.get(owner, 0) + count
        return {env: counts for env, counts in found.items() if counts}

    def add(self, shard: int, tallies: dict[str, Tally]) -> None:
        """Add a shard's report."""
        for name, tally in tallies.items():
            total = self._totals.setdefault(name, new_tally())
            total.opened += tally.opened
            total.steps += tally.steps
            total.failures += tally.failures
            total.reaped += tally.reaped
            total.limited += tally.limited
            total.engines_lost += tally.engines_lost
            total.model_calls += tally.model_calls
            total.model_failures += tally.model_failures
            total.seconds += tally.seconds
            total.buckets = [a + b for a, b in zip(total.buckets, tally.buckets, strict=True)]
            self._open.setdefault(shard, {})[name] = tally.open

    def shard_died(self, shard: int, cause: str, failed_env: str = "") -> None:
        """Record that a shard died, with its sessions; `failed_env` is the environment that hung, if one did."""
        self._open.pop(shard, None)
        self._restarts[cause] += 1
        if failed_env in self._totals:
            self._totals[failed_env].failures += 1

    def collect(self) -> Iterator[Metric]:
        """Return the metrics; called by the registry."""
        prefix = "gymfleet_env"
        opened = CounterMetricFamily(f"{prefix}_sessions_opened", "Sessions opened, forks included", labels=["env"])
        active = GaugeMetricFamily(f"{prefix}_sessions", "Sessions open now", labels=["env", "owner"])
        steps = CounterMetricFamily(f"{prefix}_steps", "Steps executed", labels=["env"])
        failures = CounterMetricFamily(
            f"{prefix}_failures", "Calls in which an environment raised or hung", labels=["env"]
        )
        reaped = CounterMetricFamily(f"{prefix}_reaped", "Sessions closed because their lease ran out", labels=["env"])
        limited = CounterMetricFamily(f"{prefix}_limited", "Sessions closed over a limit of theirs", labels=["env"])
        lost = CounterMetricFamily(
            f"{prefix}_engines_lost", "Calls in which the engine under an environment died", labels=["env"]
        )
        asked = CounterMetricFamily(f"{prefix}_model_calls", "Calls of models by an environment", labels=["env"])
        unanswered = CounterMetricFamily(
            f"{prefix}_model_failures", "Calls of models that got no usable answer", labels=["env"]
        )
        seconds = HistogramMetricFamily(f"{prefix}_step_seconds", "Time of one step in its environment", labels=["env"])
        sessions = self.sessions()
        for name, total in self._totals.items():
            opened.add_metric([name], total.opened)
            for owner, count in {"": 0, **sessions.get(name, {})}.items():
                active.add_metric([name, owner], count)
            steps.add_metric([name], total.steps)
            failures.add_metric([name], total.failures)
            reaped.add_metric([name], total.reaped)
            limited.add_metric([name], total.limited)
            lost.add_metric([name], total.engines_lost)
            asked.add_metric([name], total.model_calls)
            unanswered.add_metric([name], total.model_failures)
            bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
            counts = list(zip(bounds, map(float, accumulate(total.buckets)), strict=True))
            seconds.add_metric([name], buckets=counts, sum_value=total.seconds)
        restarts = CounterMetricFamily(f"{prefix}_shard_restarts", "Shards that died or were killed", labels=["cause"])
        for cause, count in self._restarts.items():
            restarts.add_metric([cause], count)
        yield from (opened, active, steps, failures, reaped, limited, lost, asked, unanswered, seconds, restarts)
