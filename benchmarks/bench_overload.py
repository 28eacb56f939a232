"""Ten times more players than slots, of two tenants with weights 1:3, against exactly as many players as slots.

An episode is an open, some steps with a pause before each (the time a policy takes to
reply), and a close: its length does not depend on the load, so the slots are the
capacity. Every player begins the next episode as soon as the last one ends, over the
stream. One run measures first the exact load and then the overload.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop
from gymfleet_client import ClientError, SessionStream
from gymfleet_client.errors import EnvironmentFull
from gymfleet_contracts.keys import key_digest, new_key
from gymfleet_contracts.session import OpenSession

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet, tally_environment

WEIGHTS: Final = {"light": 1, "heavy": 3}
OVERLOAD: Final = 10
WARM_UP_S: Final = 3.0
TASK: Final = OpenSession(env="tally", task_index=0)
SIZES: Final = {
    "slots": Size(64, smoke=8),
    "steps": Size(10, smoke=3, help="per episode"),
    "pause_s": Size(0.05, smoke=0.02, help="before each step"),
    "seconds": Size(60.0, smoke=2.0, help="per phase"),
}


@dataclass(frozen=True)
class Load:
    """One phase."""

    players: dict[str, int]
    steps: int
    pause_s: float
    seconds: float


@dataclass
class Seen:
    """Counts and times over the players of one phase, between warm-up and end."""

    finished: Counter[str] = field(default_factory=Counter)
    step_s: list[float] = field(default_factory=list)
    open_s: list[float] = field(default_factory=list)
    turned_away: int = 0
    lost: int = 0

    def p99_ms(self) -> float:
        """Return the 99th percentile of a step's latency."""
        return 1000 * statistics.quantiles(self.step_s, n=100)[98]


class Phase:
    """Players of both tenants at one gateway."""

    def __init__(self, load: Load, streams: dict[str, SessionStream]) -> None:
        self._load = load
        self._streams = streams
        self._from = time.perf_counter() + WARM_UP_S
        self._until = self._from + load.seconds
        self.seen = Seen()

    async def run(self) -> Seen:
        """Play until the time is up; episodes in progress are played to their end but not counted."""
        await asyncio.gather(
            *(self._play(tenant) for tenant, number in self._load.players.items() for _ in range(number))
        )
        return self.seen

    @property
    def _counts(self) -> bool:
        return self._from <= time.perf_counter() < self._until

    async def _play(self, tenant: str) -> None:
        stream = self._streams[tenant]
        # Players start out of step with each other, as real ones do: bursts would flatter the comparison.
        await asyncio.sleep(random.uniform(0, self._load.steps * self._load.pause_s))
        while (began := time.perf_counter()) < self._until:
            try:
                session = await stream.open(TASK, timeout_s=120.0)
            except EnvironmentFull:
                self.seen.turned_away += 1
                continue
            if self._counts:
                self.seen.open_s.append(time.perf_counter() - began)
            try:
                await self._episode(stream, session.session_id)
            except ClientError:
                self.seen.lost += 1
            else:
                self.seen.finished[tenant] += self._counts

    async def _episode(self, stream: SessionStream, session_id: str) -> None:
        for index in range(self._load.steps):
            await asyncio.sleep(self._load.pause_s)
            began = time.perf_counter()
            await stream.step(session_id, index, "x")
            if self._counts:
                self.seen.step_s.append(time.perf_counter() - began)
        await stream.close(session_id)


async def measure(slots: int, steps: int, pause_s: float, seconds: float) -> list[Row]:
    """Run both phases over one gateway and one env server."""
    keys = {tenant: new_key(tenant) for tenant in WEIGHTS}
    shares = {tenant: weight / sum(WEIGHTS.values()) for tenant, weight in WEIGHTS.items()}
    exact = {tenant: round(slots * share) for tenant, share in shares.items()}
    many = {tenant: OVERLOAD * slots // len(WEIGHTS) for tenant in WEIGHTS}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        tenants = directory / "tenants.toml"
        tenants.write_text(_tenants(keys), encoding="utf-8")
        server = gateway_fleet.env_server(directory, tally_environment.__file__, max_sessions=str(slots))
        gateway = gateway_fleet.gateway(
            directory, [server.url], tenants=str(tenants), max_queue=str(2 * OVERLOAD * slots), queue_timeout_s="60"
        )
        with gateway_fleet.running(server, gateway):
            async with (
                SessionStream(gateway.url, api_key=keys["light"]) as light,
                SessionStream(gateway.url, api_key=keys["heavy"]) as heavy,
            ):
                streams = {"light": light, "heavy": heavy}
                calm = await Phase(Load(exact, steps, pause_s, seconds), streams).run()
                flood = await Phase(Load(many, steps, pause_s, seconds), streams).run()
    return _rows(calm, flood, seconds, shares)


def _tenants(keys: dict[str, str]) -> str:
    return "".join(
        f"[tenants.{name}]\nweight = {WEIGHTS[name]}\n"
        f'[[tenants.{name}.keys]]\nid = "{name}"\nsha256 = "{key_digest(key)}"\n'
        for name, key in keys.items()
    )


def _rows(calm: Seen, flood: Seen, seconds: float, shares: dict[str, float]) -> list[Row]:
    rate, capacity = flood.finished.total() / seconds, calm.finished.total() / seconds
    share = flood.finished["heavy"] / max(flood.finished.total(), 1)
    return [
        Row.of("episodes finished at 10x load", rate, "episodes/s", baseline=capacity, goal=0.9 * capacity),
        Row.of(
            "share of the heavy tenant, off its 3/4 by", abs(share / shares["heavy"] - 1), "", goal=0.05,
            lower_is_better=True,
        ),
        Row.of(
            "share of the light tenant, off its 1/4 by", abs((1 - share) / shares["light"] - 1), "", goal=0.05,
            lower_is_better=True,
        ),
        Row.of("accepted sessions lost", flood.lost + calm.lost, "sessions", goal=0, lower_is_better=True),
        Row.of(
            "p99 of a step at 10x load", flood.p99_ms(), "ms", baseline=calm.p99_ms(), goal=2 * calm.p99_ms(),
            lower_is_better=True,
        ),
        Row.of("median wait for a slot at 10x load", statistics.median(flood.open_s), "s"),
        Row.of("opens turned away", flood.turned_away, "opens"),
    ]  # fmt: skip


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    rows = uvloop.run(measure(options.slots, options.steps, options.pause_s, options.seconds))
    record("overload", rows, options)


if __name__ == "__main__":
    main()
