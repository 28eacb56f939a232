"""AgentGym's wire protocol: this gateway's front compared with a server built like AgentGym's.

Clients play TextCraft, each over one persistent connection, one step after the other. The front is measured with and
without Redis; in Redis it keeps ids and journals, so that any gateway can take the next call. Rounds alternate.
"""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop

from benchmarks import agentgym_server
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.http_calls import HttpCaller
from benchmarks.processes import cpu_seconds, family
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.ports import free_port
from tests.fixtures.redis_server import RedisServer

GOAL_RATIO: Final = 2.0
MAX_STEPS: Final = 50
"""Steps of an episode; after them, another episode begins under the same id."""
ACTIONS: Final = ("inventory", "get 1 stick", "craft 1 nothing using 1 air", "look around")
SIZES: Final = {
    "clients": Size((16, 64), smoke=(2,), help="numbers of clients to measure with"),
    "seconds": Size(5.0, smoke=0.5, help="per round"),
    "rounds": Size(3, smoke=1),
}
START_TIMEOUT_S: Final = 30.0


@contextlib.contextmanager
def own_server() -> Iterator[tuple[str, int]]:
    """Run the AgentGym-like server; yield its address and process id."""
    port = free_port()
    command = [sys.executable, "-m", agentgym_server.__name__, str(port)]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{port}/", trust_env=False)
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait()


async def one_round(url: str, pids: dict[str, int], num_clients: int, seconds: float) -> tuple[float, dict[str, float]]:
    """Return the steps per second of all clients together, and each process's processor microseconds per step."""
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(HttpCaller(url)) for _ in range(num_clients)]
        ids = [(await caller.post("/create", {}))["id"] for caller in callers]
        used_s, started = {name: cpu_seconds(pid) for name, pid in pids.items()}, time.perf_counter()
        until = started + seconds
        taken = sum(await asyncio.gather(*(_play(c, number, until) for c, number in zip(callers, ids, strict=True))))
        elapsed_s = time.perf_counter() - started
        cpu_us = {name: 1e6 * (cpu_seconds(pid) - used_s[name]) / taken for name, pid in pids.items()}
    return taken / elapsed_s, cpu_us


async def _play(caller: HttpCaller, number: int, until: float) -> int:
    taken = 0
    while not taken or time.perf_counter() < until:
        if taken and taken % MAX_STEPS == 0:
            await caller.post("/reset", {"id": number, "data_idx": taken})
        answer: dict[str, Any] = await caller.post("/step", {"id": number, "action": ACTIONS[taken % len(ACTIONS)]})
        assert "observation" in answer, answer
        taken += 1
    return taken


async def measure(counts: list[int], seconds: float, rounds: int) -> list[Row]:
    """Measure all three servers in turn, for each number of clients; return medians over rounds."""
    rows = []
    with tempfile.TemporaryDirectory() as directory, own_server() as (own_url, own_pid):
        logs = Path(directory)
        (logs / "redis").mkdir()
        with RedisServer(logs / "redis") as redis:
            server = gateway_fleet.env_server(logs, "textcraft")
            shared = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
            alone = gateway_fleet.gateway(logs, [server.url])
            with gateway_fleet.running(server, shared, alone):
                front, shard = family(server.pid)
                pids = {"env front": front, "env shard": shard, "redis": redis.pid}
                ways = {
                    "own": (own_url, {"own": own_pid}),
                    "redis": (f"{shared.url}/agentgym/textcraft", {**pids, "gateway": shared.pid}),
                    "alone": (f"{alone.url}/agentgym/textcraft", {**pids, "gateway": alone.pid}),
                }
                for num_clients in counts:
                    results: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in ways}
                    for _ in range(rounds):
                        for name, (url, own) in ways.items():
                            results[name].append(await one_round(url, own, num_clients, seconds))
                    rows += _rows(num_clients, results)
    return rows


def _rows(num_clients: int, results: dict[str, list[tuple[float, dict[str, float]]]]) -> list[Row]:
    def speed(name: str) -> float:
        return statistics.median(steps_per_s for steps_per_s, _ in results[name])

    def cpu_us(name: str, process: str) -> float:
        return statistics.median(cpu[process] for _, cpu in results[name])

    own, clients = speed("own"), f"{num_clients} clients"
    rows = [
        Row.of(f"{clients}, front with Redis, over a server of AgentGym's kind", speed("redis"), "steps/s",
               baseline=own, goal=GOAL_RATIO * own),
        Row.of(f"{clients}, front without Redis, over a server of AgentGym's kind", speed("alone"), "steps/s",
               baseline=own),
        Row.of(f"{clients}, processor time of a step, server of AgentGym's kind", cpu_us("own", "own"), "us"),
    ]  # fmt: skip
    rows += [
        Row.of(f"{clients}, processor time of a step with Redis, {process}", cpu_us("redis", process), "us")
        for process in ("gateway", "redis", "env front", "env shard")
    ]
    return [
        *rows,
        Row.of(f"{clients}, processor time of a step without Redis, gateway", cpu_us("alone", "gateway"), "us"),
    ]


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    record("agentgym", uvloop.run(measure(options.clients, options.seconds, options.rounds)), options)


if __name__ == "__main__":
    main()
