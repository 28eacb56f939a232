"""Many sessions held at once and all stepped, the memory of each, and forks that leave their parent unchanged.

One gateway with its journal in Redis, one env server with two shards. Every observation of
the sessions' environment is a hash over all its actions: a step that was lost, repeated or
taken in another session shows.
"""

import asyncio
import hashlib
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import psutil
import uvloop
from gymfleet_client import ClientError

from benchmarks.calls import Caller
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.leftovers import held, session_keys
from benchmarks.processes import family, resident_bytes
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.fragile_environments import chain
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.redis_server import RedisServer

ENVIRONMENT: Final = "tests.fixtures.fragile_environments:Chain"
GOAL_BYTES_PER_SESSION: Final = 50_000
GOAL_THREADS: Final = 16
GOAL_FORK_MS: Final = 20.0
CHILDREN: Final = 8
FUTURE: Final = 20
CONCURRENCY: Final = 512
WARM_UP_SESSIONS: Final = 64
SETTLE_S: Final = 1.0
SIZES: Final = {
    "sessions": Size(16_384, smoke=32),
    "steps": Size(20, smoke=2, help="of each session"),
    "timed_forks": Size(1000, smoke=4, help=f"into {CHILDREN} children each"),
    "forks": Size(10_000, smoke=8, help="with the timed ones"),
}
T = TypeVar("T")


@dataclass(frozen=True)
class Fleet:
    """The measured processes."""

    redis: RedisServer
    server: ServiceProcess
    gateway: ServiceProcess

    def by_part(self) -> dict[str, list[int]]:
        """Return the process ids of gateway, front, shards and Redis."""
        front, *shards = family(self.server.pid)
        return {"gateway": family(self.gateway.pid), "env server": [front], "shards": shards, "redis": [self.redis.pid]}

    def resident(self) -> dict[str, int]:
        """Return the resident bytes, by part."""
        return {part: resident_bytes(pids) for part, pids in self.by_part().items()}

    def held(self) -> int:
        """Return the number of open sessions."""
        return held(self.server.url)

    def session_keys(self) -> int:
        """Return the number of journals."""
        return session_keys(self.redis.url)


@contextmanager
def running(num_sessions: int) -> Iterator[Fleet]:
    """Run two shards behind one gateway with a journal."""
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        (logs / "redis").mkdir()
        with RedisServer(logs / "redis") as redis:
            server = gateway_fleet.env_server(logs, ENVIRONMENT, shards="2", max_sessions=str(num_sessions + 1024))
            gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis.url)
            with gateway_fleet.running(server, gateway):
                yield Fleet(redis, server, gateway)


async def bounded(work: Iterable[Callable[[], Awaitable[T]]], limit: int) -> list[T]:
    """Do all the work, at most `limit` calls at a time; return the results in order."""
    slots = asyncio.Semaphore(limit)

    async def one(begin: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await begin()

    return await asyncio.gather(*map(one, work))


async def hold(fleet: Fleet, num_sessions: int, num_steps: int) -> list[Row]:
    """Open all, step all of them at once, close all."""
    async with Caller(fleet.gateway.url, connections=4) as caller:
        await _warm_up(caller)
        before = fleet.resident()
        started = time.perf_counter()
        opens = [partial(caller.open, "chain", number % 1000) for number in range(num_sessions)]
        sessions = await bounded(opens, CONCURRENCY)
        open_s = time.perf_counter() - started
        await asyncio.sleep(SETTLE_S)
        opened, keys = fleet.held(), fleet.session_keys()
        after = fleet.resident()
        failures = 0

        async def play(session: dict[str, Any]) -> None:
            nonlocal failures
            state = session["observation"]
            try:
                for index in range(num_steps):
                    result = await caller.step(session["session_id"], index, f"act {index}")
                    state = chain(state, f"act {index}")
                    failures += (result["index"], result["observation"]) != (index, state)
            except ClientError as error:
                failures += 1
                print(f"failed: {error}", flush=True)

        started = time.perf_counter()
        await asyncio.gather(*map(play, sessions))
        step_s = time.perf_counter() - started
        threads = {
            part: max(psutil.Process(pid).num_threads() for pid in pids) for part, pids in fleet.by_part().items()
        }
        still_held, played = fleet.held(), fleet.resident()
        await bounded([partial(caller.close, s["session_id"]) for s in sessions], CONCURRENCY)
        await asyncio.sleep(SETTLE_S)
    grown, grown_played = (
        {part: (then[part] - before[part]) / num_sessions for part in then} for then in (after, played)
    )
    return [
        Row.of("sessions held at once, before the first step", opened, "sessions", goal=num_sessions),
        Row.of("  after the last", still_held, "sessions", goal=num_sessions),
        Row.of("  journals in Redis", keys, "sessions", goal=num_sessions),
        Row.of("  time to open them", open_s, "s"),
        Row.of(f"  speed, each {num_steps} steps", num_sessions * num_steps / step_s, "steps/s"),
        Row.of("  failures", failures, "steps", goal=0, lower_is_better=True),
        Row.of(
            "memory of an idle session", sum(grown.values()), "bytes", goal=GOAL_BYTES_PER_SESSION, lower_is_better=True
        ),
        *(Row.of(f"  {part}", grew, "bytes") for part, grew in grown.items()),
        Row.of(
            f"  after {num_steps} steps, with the journal of them", sum(grown_played.values()), "bytes",
            goal=GOAL_BYTES_PER_SESSION, lower_is_better=True,
        ),
        *(
            Row.of(f"threads, {part}", number, "threads", goal=GOAL_THREADS, lower_is_better=True)
            for part, number in threads.items()
        ),
        Row.of("sessions left after closing", fleet.held(), "sessions", goal=0, lower_is_better=True),
        Row.of("journals left after closing", fleet.session_keys(), "keys", goal=0, lower_is_better=True),
    ]  # fmt: skip


async def _warm_up(caller: Caller) -> None:
    """Load everything loaded at first use, with few sessions: later ones reuse the memory that these free."""

    async def once(number: int) -> None:
        session = await caller.open("chain", number)
        await caller.step(session["session_id"], 0, "warm up")
        await caller.close(session["session_id"])

    await bounded([partial(once, number) for number in range(WARM_UP_SESSIONS)], CONCURRENCY)
    await asyncio.sleep(SETTLE_S)


async def fork(fleet: Fleet, num_timed: int, num_forks: int) -> list[Row]:
    """Time forks into 8 children, then fork into one; a twin that is never forked shows the parent's right state."""
    async with Caller(fleet.gateway.url) as caller:
        parent, twin = [await caller.open("chain", 7) for _ in range(2)]
        for session in (parent, twin):
            for index in range(FUTURE):
                await caller.step(session["session_id"], index, _past(index))
        parent_id = parent["session_id"]
        before = await _visible(caller, parent_id)
        seconds = []
        children_right = True
        for number in range(num_forks):
            began = time.perf_counter()
            children = await caller.fork(parent_id, CHILDREN if number < num_timed else 1)
            if number < num_timed:
                seconds.append(time.perf_counter() - began)
            child_id = children[0]["session_id"]
            if number % 100 == 0:  # a child that plays on must not carry its parent along
                children_right &= await _visible(caller, child_id) == before
                await caller.step(child_id, FUTURE, f"child {number}")
            await asyncio.gather(*(caller.close(child["session_id"]) for child in children))
        after = await _visible(caller, parent_id)
        futures = [await _future(caller, session["session_id"]) for session in (parent, twin)]
        for session in (parent, twin):
            await caller.close(session["session_id"])
    await asyncio.sleep(SETTLE_S)
    unchanged = before == after and futures[0] == futures[1]
    cuts = statistics.quantiles(seconds, n=100)
    return [
        Row.of(f"fork into {CHILDREN} children, p50", 1000 * cuts[49], "ms"),
        Row.of(f"fork into {CHILDREN} children, p99", 1000 * cuts[98], "ms", goal=GOAL_FORK_MS, lower_is_better=True),
        Row.of("forks of one parent", num_forks, "forks"),
        Row.of("  parent's state and future unchanged (1 is yes)", unchanged, "", goal=1),
        Row.of("  children in the parent's state (1 is yes)", children_right, "", goal=1),
        Row.of("  sessions left after closing", fleet.held(), "sessions", goal=0, lower_is_better=True),
        Row.of("  journals left after closing", fleet.session_keys(), "keys", goal=0, lower_is_better=True),
    ]


async def _visible(caller: Caller, session_id: str) -> str:
    """Return a hash over everything a session shows, except its name and its remaining time."""
    session = await caller.get(session_id)
    shown = {name: value for name, value in session.items() if name not in {"session_id", "expires_in_s"}}
    last = await caller.step(session_id, FUTURE - 1, _past(FUTURE - 1))  # the stored result of the last step
    return hashlib.sha256(msgspec.msgpack.encode([sorted(shown.items()), sorted(last.items())])).hexdigest()


def _past(index: int) -> str:
    return f"past {index}"


async def _future(caller: Caller, session_id: str) -> list[dict[str, Any]]:
    return [await caller.step(session_id, FUTURE + index, f"future {index}") for index in range(FUTURE)]


def main() -> None:
    """Measure and record."""
    options = BenchmarkCommand(__doc__, SIZES).options()
    with running(options.sessions) as fleet:
        rows = uvloop.run(hold(fleet, options.sessions, options.steps))
        rows += uvloop.run(fork(fleet, options.timed_forks, options.forks))
    record("sessions", rows, options)


if __name__ == "__main__":
    main()
