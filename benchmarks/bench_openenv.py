"""Steps per second of held sessions, through our gateway and on OpenEnv's own server, compared in one run.

Both sides run the same trivial environment, and every session steps as fast as its
answers come. Ours is the whole chain that an operator runs: gateway, journal in
Redis, env server. OpenEnv's is its server with two workers and nothing in front of it.
Both load generators are one process each on the bare wire protocol: a socket per session
with JSON for OpenEnv, as in its protocol, and the SDK's multiplexed socket for ours.
"""

import asyncio
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec
import uvloop
from gymfleet_client.multiplex import FrameChannel
from gymfleet_contracts.frames import Op
from websockets.asyncio.client import connect

from benchmarks import echo_environment
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.ports import free_port
from tests.fixtures.redis_server import RedisServer

WORKERS: Final = 2
WARM_UP_S: Final = 1.0
GOAL_RATIO: Final = 2.0
GOAL_P99_RATIO: Final = 0.5
SIZES: Final = {
    "sessions": Size((512, 2000), smoke=(8,)),
    "seconds": Size(8.0, smoke=1.5),
    "rounds": Size(3, smoke=1),
}
PEERS: Final = Path(os.environ.get("GYMFLEET_PEERS_VENV", Path(__file__).parents[1] / ".venv-peers"))
_decode: Final = msgspec.msgpack.Decoder().decode

Stepper = Callable[[int], Awaitable[None]]
"""Takes step i of one session."""


@dataclass(frozen=True)
class Measured:
    """One round."""

    steps_per_s: float
    p50_ms: float
    p99_ms: float


async def drive(steppers: list[Stepper], seconds: float) -> Measured:
    """Step every session as fast as it answers; steps during the warm-up do not count."""
    begin = time.perf_counter() + WARM_UP_S
    end = begin + seconds
    taken: list[float] = []

    async def play(step: Stepper) -> None:
        index = 0
        while (started := time.perf_counter()) < end:
            await step(index)
            index += 1
            if started >= begin:
                taken.append(time.perf_counter() - started)

    await asyncio.gather(*map(play, steppers))
    cuts = statistics.quantiles(taken, n=100)
    return Measured(len(taken) / (time.perf_counter() - begin), 1000 * cuts[49], 1000 * cuts[98])


async def on_ours(url: str, num_sessions: int, seconds: float) -> Measured:
    """Measure sessions through the gateway, over the stream."""
    async with FrameChannel(url, connections=2) as channel:

        async def call(op: Op, session_id: str, body: dict[str, object] | None) -> msgspec.Raw:
            reply, _ = await channel.request(op, session_id, body, timeout_s=60, repeatable=op != Op.OPEN)
            assert not reply.failed, _decode(reply.problem)
            return reply.ok

        async def opened(number: int) -> str:
            session = _decode(await call(Op.OPEN, "", {"env": "echo", "task_index": number % 1000}))
            session_id: str = session["session_id"]
            return session_id

        def stepper(session_id: str) -> Stepper:
            async def step(index: int) -> None:
                await call(Op.STEP, session_id, {"index": index, "action": "hello"})

            return step

        session_ids = await asyncio.gather(*map(opened, range(num_sessions)))
        measured = await drive([stepper(session_id) for session_id in session_ids], seconds)
        await asyncio.gather(*(call(Op.CLOSE, session_id, None) for session_id in session_ids))
    return measured


async def on_openenv(url: str, num_sessions: int, seconds: float) -> Measured:
    """Measure sessions on OpenEnv's WebSocket, one connection per session."""
    limit = asyncio.Semaphore(64)
    step_frame = json.dumps({"type": "step", "data": {"message": "hello"}})

    async def opened() -> Stepper:
        async with limit:
            socket = await connect(f"ws{url.removeprefix('http')}/ws", compression=None, open_timeout=60, proxy=None)
        sockets.append(socket)
        await socket.send(json.dumps({"type": "reset", "data": {}}))
        assert json.loads(await socket.recv())["type"] == "observation"

        async def step(_: int) -> None:
            await socket.send(step_frame)
            assert json.loads(await socket.recv())["type"] == "observation"

        return step

    sockets: list[object] = []
    steppers = await asyncio.gather(*(opened() for _ in range(num_sessions)))
    measured = await drive(list(steppers), seconds)
    for socket in sockets:
        socket.transport.abort()  # type: ignore[attr-defined]
    return measured


@contextmanager
def openenv_server(log: Path) -> Iterator[str]:
    """Run OpenEnv's own server with two workers; yield its URL."""
    port = free_port()
    command = [str(PEERS / "bin" / "uvicorn"), "--app-dir", str(Path(__file__).parent / "peers"), "openenv_server:app"]
    command += ["--workers", str(WORKERS), "--port", str(port), "--log-level", "warning"]
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(f"{url}/health", timeout=5, trust_env=False).is_success:
                    break
            except httpx.TransportError:
                pass
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"OpenEnv's server did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)


def measure(sizes: list[int], seconds: float, rounds: int) -> list[Row]:
    """Alternate between the two, so that a busy machine is busy for both; return medians over the rounds."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        (logs / "redis").mkdir()
        with RedisServer(logs / "redis") as redis, openenv_server(logs / "openenv.log") as theirs:
            server = gateway_fleet.env_server(logs, str(Path(echo_environment.__file__)))
            gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
            with gateway_fleet.running(server, gateway):
                for size in sizes:
                    ours_all, theirs_all = [], []
                    for _ in range(rounds):
                        theirs_all.append(uvloop.run(on_openenv(theirs, size, seconds)))
                        ours_all.append(uvloop.run(on_ours(gateway.url, size, seconds)))
                        print(f"{size} sessions: ours {ours_all[-1]}, OpenEnv {theirs_all[-1]}", flush=True)
                    rows += _rows(size, ours_all, theirs_all)
    return rows


def _rows(size: int, ours: list[Measured], theirs: list[Measured]) -> list[Row]:
    def median(rounds: list[Measured], value: Callable[[Measured], float]) -> float:
        return statistics.median(map(value, rounds))

    speed, their_speed = (median(rounds, lambda m: m.steps_per_s) for rounds in (ours, theirs))
    middle, their_middle = (median(rounds, lambda m: m.p50_ms) for rounds in (ours, theirs))
    tail, their_tail = (median(rounds, lambda m: m.p99_ms) for rounds in (ours, theirs))
    where = f"{size} sessions, gateway with journal against OpenEnv 0.10 ({WORKERS} workers)"
    return [
        Row.of(where, speed, "steps/s", baseline=their_speed),
        Row.of("  speed, times OpenEnv's", speed / their_speed, "x", goal=GOAL_RATIO),
        Row.of("  p50", middle, "ms", baseline=their_middle),
        Row.of("  p99", tail, "ms", baseline=their_tail),
        Row.of("  p99, times OpenEnv's", tail / their_tail, "x", goal=GOAL_P99_RATIO, lower_is_better=True),
    ]


def main() -> None:
    """Entry point."""
    parser = BenchmarkCommand(__doc__, SIZES)
    options = parser.options()
    if not (PEERS / "bin" / "uvicorn").exists():
        parser.error("OpenEnv is not installed: run scripts/peers.sh")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    record("openenv", measure(options.sessions, options.seconds, options.rounds), options)


if __name__ == "__main__":
    main()
