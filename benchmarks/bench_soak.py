"""A million short sessions, three in ten abandoned: which resources grow, and which are left behind.

Each session is opened through the gateway, stepped once or twice, and closed or left to
its lease of two seconds, as fast as possible. Memory is sampled throughout, and the
last part of the run is compared with the part after the warm-up.
"""

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import uvloop
from gymfleet_client import ClientError

from benchmarks.calls import Caller
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.leftovers import held, session_keys
from benchmarks.processes import cpu_seconds, family, resident_bytes
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.fragile_environments import chain
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.redis_server import RedisServer

ENVIRONMENT: Final = "tests.fixtures.fragile_environments:Chain"
LEASE_S: Final = 2.0
ABANDONED: Final = 3
OF: Final = 10
WINDOW: Final = 0.15
"""The warm-up, and the part at the end, as shares of the run. The end is compared with an equal part after the
warm-up."""
GOAL_GROWTH: Final = 0.02
PROGRESS_EVERY_S: Final = 10.0
SETTLE_S: Final = 3.0
MIB: Final = 2**20
SIZES: Final = {
    "sessions": Size(1_000_000, smoke=400),
    "concurrency": Size(128, smoke=16),
    "sample_every_s": Size(1.0, smoke=0.02, help="of the processes' memory"),
}


@dataclass
class Sample:
    """The state of all processes at one moment."""

    done: int
    resident: dict[str, int]
    processes: int
    threads: int
    files: int


class Fleet:
    """The measured processes."""

    def __init__(self, redis: RedisServer, server: ServiceProcess, gateway: ServiceProcess) -> None:
        self.redis = redis
        self.server = server
        self.gateway = gateway

    def pids(self) -> dict[str, int]:
        """Return the process ids, by part."""
        front, *shards = family(self.server.pid)
        return {
            "gateway": self.gateway.pid,
            "env server": front,
            **{f"shard {place}": pid for place, pid in enumerate(shards)},
            "redis": self.redis.pid,
        }

    def sample(self, done: int) -> Sample:
        """Sample all processes now."""
        pids = self.pids()
        # Redis's children are left out: one that rewrites its file shares its pages, and no session causes it.
        count = len(pids) + len(family(self.gateway.pid)) - 1
        return Sample(
            done=done,
            resident={part: resident_bytes([pid]) for part, pid in pids.items()},
            processes=count,
            threads=sum(psutil.Process(pid).num_threads() for pid in pids.values()),
            files=sum(psutil.Process(pid).num_fds() for pid in pids.values()),
        )

    def processor_s(self) -> dict[str, float]:
        """Return the processor time so far, by part."""
        return {part: cpu_seconds(pid) for part, pid in self.pids().items()}


@dataclass
class Soak:
    """One run and its counts."""

    fleet: Fleet
    num_sessions: int
    sample_every_s: float
    done: int = 0
    steps: int = 0
    failures: int = 0
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0

    async def run(self, concurrency: int) -> None:
        """Open, step and leave every session."""
        numbers = iter(range(self.num_sessions))
        started = time.perf_counter()
        watcher = asyncio.create_task(self._watch())
        try:
            async with Caller(self.fleet.gateway.url, connections=2) as caller:
                await asyncio.gather(*(self._play(caller, numbers) for _ in range(concurrency)))
                self.seconds = time.perf_counter() - started
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])

    async def _play(self, caller: Caller, numbers: Iterator[int]) -> None:
        for number in numbers:
            try:
                session = await caller.open("chain", number % 1000, lease_s=LEASE_S)
                state = session["observation"]
                for index in range(1 + number % 2):
                    result = await caller.step(session["session_id"], index, "on")
                    state = chain(state, "on")
                    self.failures += result["observation"] != state
                    self.steps += 1
                if number % OF >= ABANDONED:
                    await caller.close(session["session_id"])
            except ClientError as error:
                self.failures += 1
                print(f"failed: {error}", flush=True)
            self.done += 1

    async def _watch(self) -> None:
        began = time.perf_counter()
        shown = began
        for tick in itertools.count(1):
            await asyncio.sleep(max(began + tick * self.sample_every_s - time.perf_counter(), 0))
            sample = self.fleet.sample(self.done)
            self.samples.append(sample)
            now = time.perf_counter()
            if now - shown >= PROGRESS_EVERY_S:
                shown = now
                sizes = ", ".join(f"{part} {size / MIB:.1f}" for part, size in sample.resident.items())
                print(f"{self.done:,} sessions, {self.done / (now - began):,.0f}/s; MiB: {sizes}", flush=True)

    def window(self, begin: float, end: float) -> list[Sample]:
        """Return the samples of a part of the run, given as shares of the sessions."""
        return [s for s in self.samples if begin * self.num_sessions <= s.done <= end * self.num_sessions]


def measure(num_sessions: int, concurrency: int, sample_every_s: float) -> list[Row]:
    """Run the soak, wait for the leases, and count what is left."""
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        (logs / "redis").mkdir()
        with RedisServer(logs / "redis") as redis:
            server = gateway_fleet.env_server(logs, ENVIRONMENT, shards="2", max_sessions="65536", step_timeout_s="1")
            gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
            with gateway_fleet.running(server, gateway):
                fleet = Fleet(redis, server, gateway)
                soak = Soak(fleet, num_sessions, sample_every_s)
                used = fleet.processor_s()
                uvloop.run(soak.run(concurrency))
                time.sleep(LEASE_S + SETTLE_S)
                spent = {part: total - used[part] for part, total in fleet.processor_s().items()}
                return [
                    *_work(soak, spent),
                    *_memory(soak),
                    *_left(fleet, soak.window(WINDOW, 1.0)),
                ]


def _work(soak: Soak, spent: dict[str, float]) -> list[Row]:
    number = soak.num_sessions
    return [
        Row.of("sessions", number, "sessions"),
        Row.of("  of them abandoned", ABANDONED / OF, ""),
        Row.of("  failures", soak.failures, "calls", goal=0, lower_is_better=True),
        Row.of("  speed", number / soak.seconds, "sessions/s"),
        Row.of("  time", soak.seconds, "s"),
        *(
            Row.of(
                f"  processor time of open, {soak.steps / number:.1f} steps and close: {part}", 1e6 * s / number, "us"
            )
            for part, s in spent.items()
        ),
    ]


def _memory(soak: Soak) -> list[Row]:
    first, last = soak.window(WINDOW, 2 * WINDOW), soak.window(1 - WINDOW, 1.0)
    if not first or not last:
        raise ValueError(f"{soak.num_sessions} sessions are over before there is anything to compare; run more")

    def mean(samples: list[Sample], part: str) -> float:
        return statistics.mean(sum(s.resident.values()) if part == "all" else s.resident.get(part, 0) for s in samples)

    rows = []
    for part in ("all", *last[0].resident):
        before, after = mean(first, part) / MIB, mean(last, part) / MIB
        goal = (1 + GOAL_GROWTH) * before if part == "all" else None
        rows.append(
            Row.of(f"memory at the end, {part}", after, "MiB", baseline=before, goal=goal, lower_is_better=True)
        )
    return rows


def _left(fleet: Fleet, samples: list[Sample]) -> list[Row]:
    early, now = samples[0], fleet.sample(0)
    return [
        Row.of("sessions left", held(fleet.server.url), "sessions", goal=0, lower_is_better=True),
        Row.of("journals left", session_keys(fleet.redis.url), "keys", goal=0, lower_is_better=True),
        *(
            Row.of(f"{what}, all together", after, what, baseline=before, goal=before, lower_is_better=True)
            for what, before, after in (
                ("processes", early.processes, now.processes),
                ("threads", early.threads, now.threads),
                ("files", early.files, now.files),
            )
        ),
    ]


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    record("soak", measure(options.sessions, options.concurrency, options.sample_every_s), options)


if __name__ == "__main__":
    main()
