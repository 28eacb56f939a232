"""What the gateway costs per step: through it and past it, side by side in one run.

Sessions of TextCraft are stepped as fast as the answers come, over the stream,
over REST and in batches. Rounds through the gateway and rounds straight to the
env server alternate, so that a busy machine is busy for both.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.session import OpenSession, Session, SessionStep, StepResult

from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess

GOAL_STEPS_PER_S: Final = 2000.0
MAX_STEPS: Final = 50
"""Fewer than TextCraft allows: then a session is replaced by a new one."""
ACTION: Final = "inventory"


@dataclass
class Seat:
    """A session that is being stepped."""

    session_id: str
    index: int = 0


@dataclass(frozen=True)
class Measured:
    """One round."""

    steps_per_s: float
    latency_ms: float
    gateway_us_per_step: float


Play = Callable[[str, list[Seat], float], Awaitable[list[float]]]


async def over_stream(url: str, seats: list[Seat], until: float) -> list[float]:
    """One step in flight per session, on one socket; seconds per step."""
    async with SessionStream(url) as stream:

        async def play(seat: Seat) -> list[float]:
            return await _steps(seat, until, stream.step, lambda: stream.open(_task()), stream.close)

        return [seconds for part in await asyncio.gather(*map(play, seats)) for seconds in part]


async def over_rest(url: str, seats: list[Seat], until: float) -> list[float]:
    """One request in flight per session."""
    async with GatewayClient(url) as client:

        async def play(seat: Seat) -> list[float]:
            return await _steps(seat, until, client.step, lambda: client.open(_task()), client.close)

        return [seconds for part in await asyncio.gather(*map(play, seats)) for seconds in part]


async def in_batches(url: str, seats: list[Seat], until: float) -> list[float]:
    """All sessions in one request after the other."""
    taken: list[float] = []
    async with GatewayClient(url) as client:
        while time.perf_counter() < until:
            if seats[0].index == MAX_STEPS:
                await asyncio.gather(*(_renew(seat, lambda: client.open(_task()), client.close) for seat in seats))
            started = time.perf_counter()
            items = [SessionStep(session_id=seat.session_id, index=seat.index, action=ACTION) for seat in seats]
            results = await client.steps(items)
            assert all(isinstance(result, StepResult) for result in results), results
            taken += [time.perf_counter() - started] * len(items)
            for seat in seats:
                seat.index += 1
    return taken


async def _steps(
    seat: Seat,
    until: float,
    step: Callable[[str, int, str], Awaitable[StepResult]],
    open_: Callable[[], Awaitable[Session]],
    close: Callable[[str], Awaitable[None]],
) -> list[float]:
    taken = []
    while time.perf_counter() < until:
        if seat.index == MAX_STEPS:
            await _renew(seat, open_, close)
        started = time.perf_counter()
        await step(seat.session_id, seat.index, ACTION)
        taken.append(time.perf_counter() - started)
        seat.index += 1
    return taken


async def _renew(seat: Seat, open_: Callable[[], Awaitable[Session]], close: Callable[[str], Awaitable[None]]) -> None:
    await close(seat.session_id)
    session = await open_()
    seat.session_id, seat.index = session.session_id, 0


def _task() -> OpenSession:
    return OpenSession(env="textcraft", task_index=0)


async def one_round(play: Play, url: str, gateway: ServiceProcess, num_sessions: int, seconds: float) -> Measured:
    """Open the sessions, play for some seconds, close them."""
    async with SessionStream(url) as stream:
        sessions = [await stream.open(_task()) for _ in range(num_sessions)]
        seats = [Seat(session.session_id) for session in sessions]
        used_s, started = cpu_seconds(gateway.pid), time.perf_counter()
        taken = await play(url, seats, started + seconds)
        elapsed_s, used_s = time.perf_counter() - started, cpu_seconds(gateway.pid) - used_s
        for seat in seats:
            await stream.close(seat.session_id)
    return Measured(len(taken) / elapsed_s, 1000 * statistics.median(taken), 1e6 * used_s / len(taken))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(num_sessions: int, seconds: float, rounds: int) -> list[Row]:
    """All three ways, alternately past and through the gateway; medians over the rounds."""
    rows = []
    with tempfile.TemporaryDirectory() as logs:
        server = gateway_fleet.env_server(Path(logs), "textcraft")
        gateway = gateway_fleet.gateway(Path(logs), [server.url])
        with gateway_fleet.running(server, gateway):
            ways: dict[str, Play] = {"stream": over_stream, "rest": over_rest, "batch": in_batches}
            for name, play in ways.items():
                direct, through = [], []
                for _ in range(rounds):
                    direct.append(await one_round(play, server.url, gateway, num_sessions, seconds))
                    through.append(await one_round(play, gateway.url, gateway, num_sessions, seconds))
                rows += _rows(name, direct, through, GOAL_STEPS_PER_S if play is over_stream else None)
    return rows


def _rows(name: str, direct: list[Measured], through: list[Measured], goal: float | None) -> list[Row]:
    def middle(rounds: list[Measured], field: str) -> float:
        values: list[float] = [getattr(measured, field) for measured in rounds]
        return statistics.median(values)

    return [
        Row.of(
            f"{name}: steps through the gateway", middle(through, "steps_per_s"), "steps/s",
            baseline=middle(direct, "steps_per_s"), goal=goal,
        ),
        Row.of(
            f"{name}: median time of a step", middle(through, "latency_ms"), "ms",
            baseline=middle(direct, "latency_ms"), lower_is_better=True,
        ),
        Row.of(f"{name}: the gateway's processor time per step", middle(through, "gateway_us_per_step"), "us"),
    ]  # fmt: skip


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=5.0, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    record("gateway", uvloop.run(measure(options.sessions, options.seconds, options.rounds)))


if __name__ == "__main__":
    main()
