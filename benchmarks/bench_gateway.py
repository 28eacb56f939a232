"""The gateway's cost per step: steps through it and steps past it, compared in one run.

Sessions of a trivial environment are stepped as fast as the answers come, with the SDK over the stream, over REST and
in batches, and over REST with a bare client. Rounds through the gateway and rounds straight to the env server
alternate, so that a busy machine is busy for both. The processor time of every process on the way shows where each
microsecond of a step goes.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvloop
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.session import OpenSession, Session, SessionStep, StepResult

from benchmarks import echo_environment
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.http_calls import HttpCaller
from benchmarks.processes import cpu_seconds, family
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.redis_server import RedisServer

GOAL_STEPS_PER_S: Final = 2000.0
MAX_STEPS: Final = 50
"""Steps of a session; after them a new one replaces it, as in real episodes."""
ACTION: Final = "hello"
SIZES: Final = {
    "sessions": Size(64, smoke=4),
    "seconds": Size(5.0, smoke=0.5, help="per round"),
    "rounds": Size(3, smoke=1),
}


@dataclass
class SteppedSession:
    """A session that is being stepped."""

    session_id: str
    index: int = 0


@dataclass(frozen=True)
class Measured:
    """One round: speed, median time of a step, and each process's processor microseconds per step."""

    steps_per_s: float
    latency_ms: float
    cpu_us: dict[str, float]


Play = Callable[[str, list[SteppedSession], float], Awaitable[list[float]]]


async def over_stream(url: str, stepped: list[SteppedSession], until: float) -> list[float]:
    """Play with one step in flight per session, on one socket; return seconds per step."""
    async with SessionStream(url) as stream:

        async def play(session: SteppedSession) -> list[float]:
            return await _steps(session, until, stream.step, lambda: stream.open(_task()), stream.close)

        return [seconds for part in await asyncio.gather(*map(play, stepped)) for seconds in part]


async def over_rest(url: str, stepped: list[SteppedSession], until: float) -> list[float]:
    """Play with one request in flight per session."""
    async with GatewayClient(url) as client:

        async def play(session: SteppedSession) -> list[float]:
            return await _steps(session, until, client.step, lambda: client.open(_task()), client.close)

        return [seconds for part in await asyncio.gather(*map(play, stepped)) for seconds in part]


async def over_kept_connections(url: str, stepped: list[SteppedSession], until: float) -> list[float]:
    """Play over REST, one connection per session, with a client of nearly no cost: measures the server side."""
    async with SessionStream(url) as stream, AsyncExitStack() as stack:

        async def play(session: SteppedSession) -> list[float]:
            caller = await stack.enter_async_context(HttpCaller(url))

            async def step(session_id: str, index: int, action: str) -> Any:
                return await caller.post(f"/v1/sessions/{session_id}/steps", {"index": index, "action": action})

            return await _steps(session, until, step, lambda: stream.open(_task()), stream.close)

        return [seconds for part in await asyncio.gather(*map(play, stepped)) for seconds in part]


async def in_batches(url: str, stepped: list[SteppedSession], until: float) -> list[float]:
    """Play with one request after the other, each for all sessions."""
    taken: list[float] = []
    async with GatewayClient(url) as client:
        while not taken or time.perf_counter() < until:
            if stepped[0].index == MAX_STEPS:
                await asyncio.gather(
                    *(_begin_again(session, lambda: client.open(_task()), client.close) for session in stepped)
                )
            started = time.perf_counter()
            items = [
                SessionStep(session_id=session.session_id, index=session.index, action=ACTION) for session in stepped
            ]
            results = await client.steps(items)
            assert all(isinstance(result, StepResult) for result in results), results
            taken += [time.perf_counter() - started] * len(items)
            for session in stepped:
                session.index += 1
    return taken


async def _steps(
    session: SteppedSession,
    until: float,
    step: Callable[[str, int, str], Awaitable[StepResult]],
    open_: Callable[[], Awaitable[Session]],
    close: Callable[[str], Awaitable[None]],
) -> list[float]:
    taken: list[float] = []
    while not taken or time.perf_counter() < until:
        if session.index == MAX_STEPS:
            await _begin_again(session, open_, close)
        started = time.perf_counter()
        await step(session.session_id, session.index, ACTION)
        taken.append(time.perf_counter() - started)
        session.index += 1
    return taken


async def _begin_again(
    session: SteppedSession, open_: Callable[[], Awaitable[Session]], close: Callable[[str], Awaitable[None]]
) -> None:
    await close(session.session_id)
    opened = await open_()
    session.session_id, session.index = opened.session_id, 0


def _task() -> OpenSession:
    return OpenSession(env="echo", task_index=0)


async def one_round(play: Play, url: str, pids: dict[str, int], num_sessions: int, seconds: float) -> Measured:
    """Open the sessions, play for some seconds, close them."""
    async with SessionStream(url) as stream:
        sessions = [await stream.open(_task()) for _ in range(num_sessions)]
        stepped = [SteppedSession(session.session_id) for session in sessions]
        used_s, started = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.perf_counter()
        taken = await play(url, stepped, started + seconds)
        elapsed_s = time.perf_counter() - started
        cpu_us = {name: 1e6 * (cpu_seconds(pid) - used_s[name]) / len(taken) for name, pid in pids.items()}
        for session in stepped:
            await stream.close(session.session_id)
    return Measured(len(taken) / elapsed_s, 1000 * statistics.median(taken), cpu_us)


async def measure(num_sessions: int, seconds: float, rounds: int) -> list[Row]:
    """Measure all ways past the gateway, through it, and through one without a journal in turn; medians over rounds."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        (logs / "redis").mkdir()
        with RedisServer(logs / "redis") as redis:
            server = gateway_fleet.env_server(logs, str(Path(echo_environment.__file__)))
            gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
            plain = gateway_fleet.gateway(logs, [server.url])
            with gateway_fleet.running(server, gateway, plain):
                front, shard = family(server.pid)
                pids = {"client": os.getpid(), "env front": front, "env shard": shard, "redis": redis.pid}
                ways: dict[str, Play] = {
                    "stream": over_stream,
                    "rest": over_rest,
                    "rest, kept connections": over_kept_connections,
                    "batch": in_batches,
                }
                for name, play in ways.items():
                    results: dict[str, list[Measured]] = {"direct": [], "journal": [], "plain": []}
                    for _ in range(rounds):
                        for path, url, own in (
                            ("direct", server.url, pids),
                            ("journal", gateway.url, {**pids, "gateway": gateway.pid}),
                            ("plain", plain.url, {**pids, "gateway": plain.pid}),
                        ):
                            results[path].append(await one_round(play, url, own, num_sessions, seconds))
                    rows += _rows(name, results, GOAL_STEPS_PER_S if play is over_stream else None)
    return rows


def _rows(name: str, results: dict[str, list[Measured]], goal: float | None) -> list[Row]:
    def middle(path: str, value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, results[path]))

    def speed(measured: Measured) -> float:
        return measured.steps_per_s

    def latency(measured: Measured) -> float:
        return measured.latency_ms

    rows = [
        Row.of(f"{name}: gateway with journal, over direct", middle("journal", speed), "steps/s",
               baseline=middle("direct", speed), goal=goal),
        Row.of(f"{name}: gateway without journal, over direct", middle("plain", speed), "steps/s",
               baseline=middle("direct", speed)),
        Row.of(f"{name}: median time of a step", middle("journal", latency), "ms", baseline=middle("direct", latency)),
    ]  # fmt: skip
    for process in ("client", "gateway", "redis", "env front", "env shard"):
        values = [measured.cpu_us[process] for measured in results["journal"]]
        rows.append(Row.of(f"{name}: processor time of a step, {process}", statistics.median(values), "us"))
    without = statistics.median(measured.cpu_us["gateway"] for measured in results["plain"])
    rows.append(Row.of(f"{name}: processor time of a step, gateway without journal", without, "us"))
    return rows


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    record("gateway", uvloop.run(measure(options.sessions, options.seconds, options.rounds)), options)


if __name__ == "__main__":
    main()
