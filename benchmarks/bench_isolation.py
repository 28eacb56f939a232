"""How eight CPU-busy sessions slow a light one: the same environment, other shards, fewer cores than shards.

The light session's steps are measured one after the other, alone and next to the busy
sessions, straight at the env server. It is opened last: whether it gets its own shard is
part of the measurement.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import uvloop
from gymfleet_client import SessionStream
from gymfleet_contracts.session import OpenSession, Session

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet

GOAL_P50_MS: Final = 5.0
GOAL_P99_MS: Final = 25.0
ENVIRONMENT: Final = Path(__file__).parents[1] / "tests" / "conformance" / "troublesome_env.py"
BURN: Final = "burn 0.05"
PAUSE_S: Final = 0.002
"""The pause between the light session's steps, while an agent thinks."""
MAX_STEPS: Final = 900
"""Fewer steps than the environment allows."""
SIZES: Final = {
    "busy": Size(8, smoke=2),
    "seconds": Size(5.0, smoke=1.0, help="per round"),
    "rounds": Size(3, smoke=1),
}


async def open_one(stream: SessionStream) -> Session:
    """Open a session with any task: the environment does as its actions say."""
    return await stream.open(OpenSession(env="troublesome", task_index=0))


async def burn(stream: SessionStream, session: Session) -> None:
    """Keep one shard busy until cancelled."""
    for index in range(MAX_STEPS):
        await stream.step(session.session_id, index, BURN)


@asynccontextmanager
async def burning(url: str, num_busy: int) -> AsyncIterator[set[str]]:
    """Run busy sessions; yield the shards that they are on."""
    async with SessionStream(url) as stream:
        sessions = [await open_one(stream) for _ in range(num_busy)]
        tasks = [asyncio.create_task(burn(stream, session)) for session in sessions]
        await asyncio.sleep(1.0)
        try:
            yield {shard_of(session) for session in sessions}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for session in sessions:
                await stream.close(session.session_id)


def shard_of(session: Session) -> str:
    """Return the shard named in an env server's session id."""
    return session.session_id.split("-")[1]


async def light(url: str, seconds: float) -> tuple[list[float], str]:
    """Step one session; return the milliseconds of each step, and its shard."""
    taken = []
    async with SessionStream(url) as stream:
        session = await open_one(stream)
        until = time.perf_counter() + seconds
        index = 0
        while time.perf_counter() < until and index < MAX_STEPS:
            started = time.perf_counter()
            await stream.step(session.session_id, index, "go")
            taken.append(1000 * (time.perf_counter() - started))
            index += 1
            await asyncio.sleep(PAUSE_S)
        await stream.close(session.session_id)
    return taken, shard_of(session)


async def measure(num_busy: int, seconds: float, rounds: int) -> list[Row]:
    """Alternate rounds alone with rounds next to the busy sessions; return percentiles over all their steps."""
    alone: list[float] = []
    beside: list[float] = []
    shared = 0
    with tempfile.TemporaryDirectory() as logs:
        server = gateway_fleet.env_server(Path(logs), str(ENVIRONMENT), shards=str(num_busy + 1))
        with gateway_fleet.running(server):
            for _ in range(rounds):
                alone += (await light(server.url, seconds))[0]
                async with burning(server.url, num_busy) as shards:
                    taken, own = await light(server.url, seconds)
                beside += taken
                shared += own in shards
    name = f"beside {num_busy} busy sessions"
    return [
        Row.of(
            f"{name}: median time of a light step", statistics.median(beside), "ms",
            baseline=statistics.median(alone), goal=GOAL_P50_MS, lower_is_better=True,
        ),
        Row.of(
            f"{name}: p99 of a light step", percentile(beside, 99), "ms",
            baseline=percentile(alone, 99), goal=GOAL_P99_MS, lower_is_better=True,
        ),
        Row.of(f"{name}: longest light step", max(beside), "ms", baseline=max(alone), lower_is_better=True),
        Row.of(f"{name}: light steps", len(beside), "steps"),
        Row.of("rounds in which the light session shared a busy shard", shared, "rounds", goal=0, lower_is_better=True),
    ]  # fmt: skip


def percentile(values: list[float], percent: int) -> float:
    """Return the value that `percent` percent of the values do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    record("isolation", uvloop.run(measure(options.busy, options.seconds, options.rounds)), options)


if __name__ == "__main__":
    main()
