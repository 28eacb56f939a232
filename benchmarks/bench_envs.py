"""The speed of each environment through its server, as a class in one loop, and of its bare engine.

The expert's actions for some training tasks are worked out first and then replayed, so
that no planner is timed. `served` is one env server with one shard, its sessions
stepped over the stream as fast as the answers come; `class` is the same environment
class in a loop of this process; `engine` is the underlying engine, driven as its own
documentation or its published server drives it (`benchmarks.engines`).
"""

import asyncio
import math
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, Self

import uvloop
from gymfleet_client import SessionStream
from gymfleet_contracts.session import OpenSession
from gymfleet_env_server.catalogue import ENVIRONMENTS, Entry, load_entry

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.engines import ENGINES
from benchmarks.processes import cpu_seconds, family, resident_bytes
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet

SHARE_OF_BARE: Final = 0.8
SETTLE_S: Final = 1.0
_TICK_S: Final = 0.01
"""The kernel counts the processor time of other processes in units of this."""
SIZES: Final = {
    "seconds": Size(5.0, smoke=0.3, help="per measurement"),
    "load": Size(2000, smoke=2, help="at most so many tasks, and sessions at once"),
}
SMOKE: Final = {"env": [*ENGINES]}
"""The environments with an engine to compare with; the same code measures the others, and other tests serve them."""


@dataclass(frozen=True)
class Load:
    """How an environment is driven."""

    tasks: int = 200
    sessions: int = 32
    """Sessions stepped at once."""
    held: int = 1000
    """Sessions open at once when memory is measured."""
    level: str | None = None
    shards: int = 1
    light: bool = True
    """Whether a step takes microseconds, so that the server's own work shows."""

    def at_most(self, number: int) -> Self:
        """Return the same load with at most `number` tasks and sessions."""
        return replace(
            self, tasks=min(self.tasks, number), sessions=min(self.sessions, number), held=min(self.held, number)
        )


WORLDS: Final = (
    "kg", "searchqa", "weather", "movie", "academia", "todo", "sheet", "tau_airline", "tau_retail", "function_calling",
    "card_game",
)  # fmt: skip
"""Environments of tools and knowledge: many sessions with little work each."""
ADAPTED: Final = ("dataset", "lateral_thinking", "reasoning_gym", "textarena", "textworld")
"""Environments that are measured without goals: rows of data, and other people's packages."""
LOADS: Final = {
    **dict.fromkeys(WORLDS, Load(held=2000)),
    "os": Load(tasks=20, sessions=8, held=50, light=False),
    "sciworld": Load(tasks=24, sessions=16, held=60, level="medium", shards=2, light=False),
    "alfworld": Load(tasks=40, sessions=16, held=100, light=False),
    "sql": Load(tasks=100, held=500),
    "db": Load(tasks=100, held=500),
}


@dataclass(frozen=True)
class Goals:
    """The figures to reach; None: no goal."""

    of_engine: float | None = SHARE_OF_BARE
    """The class's speed as a multiple of the bare engine's."""
    of_class: float | None = SHARE_OF_BARE
    """The shard's speed as a share of the class's, per core."""
    served: float | None = None
    """Steps per second."""
    above_class_us: float | None = None
    """A shard's time for a step beyond the class's. An environment that reaches this goal need not reach `served`."""
    memory_mb: float | None = None


GOALS: Final = {
    **dict.fromkeys(WORLDS, Goals(of_class=None, served=5000.0, above_class_us=25.0, memory_mb=0.75)),
    **dict.fromkeys(ADAPTED, Goals(of_class=None)),
    "os": Goals(of_engine=None),
    "sciworld": Goals(of_engine=None, served=100.0, memory_mb=20.0),
    "alfworld": Goals(of_engine=2.0),
}


@dataclass(frozen=True)
class Episode:
    """A task and the actions that solve it."""

    index: int
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """Steps per second of wall time, and of processor time including opening and closing; milliseconds."""

    steps_per_s: float
    steps_per_cpu_s: float
    p99_ms: float
    create_ms: float


def episodes_of(entry: Entry, load: Load) -> list[Episode]:
    """Return the expert's episodes of the first training tasks."""
    found = []
    for index in range(load.tasks):
        environment = entry.make()
        environment.reset(_task(entry, load, index), 0)
        actions: list[str] = []
        while len(actions) < entry.kind.max_turns and (move := environment.expert()) is not None:
            actions.append(move.action)
            if environment.step(move.action).terminated:
                break
        environment.close()
        found.append(Episode(index, tuple(actions)))
    return found


def _task(entry: Entry, load: Load, index: int) -> Any:
    level = load.level or entry.spec.default_level
    return entry.tasks.by_index("train", level, index).data


def in_a_loop(entry: Entry, load: Load, episodes: list[Episode], seconds: float) -> Measured:
    """Measure the class, one episode after the other."""
    steps, creates = [], []
    used, until = time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        for episode in episodes:
            began = time.perf_counter()
            environment = entry.make()
            environment.reset(_task(entry, load, episode.index), 0)
            creates.append(time.perf_counter() - began)
            for action in episode.actions:
                began = time.perf_counter()
                environment.step(action)
                steps.append(time.perf_counter() - began)
            environment.close()
            if time.perf_counter() > until:
                break
    cpu_s = max(time.process_time() - used, _TICK_S)
    return Measured(len(steps) / sum(steps), len(steps) / cpu_s, _p99(steps), 1000 * statistics.median(creates))


async def served(url: str, pid: int, load: Load, env: str, episodes: list[Episode], seconds: float) -> Measured:
    """Measure the server with `load.sessions` players at once; each plays one episode after the other."""
    steps: list[float] = []
    creates: list[float] = []
    players = range(load.sessions)
    async with SessionStream(url) as stream:

        async def play(own: Iterable[Episode]) -> None:
            for episode in own:
                if time.perf_counter() > until:
                    return
                began = time.perf_counter()
                session = await stream.open(OpenSession(env=env, level=load.level, task_index=episode.index))
                creates.append(time.perf_counter() - began)
                for index, action in enumerate(episode.actions):
                    began = time.perf_counter()
                    await stream.step(session.session_id, index, action)
                    steps.append(time.perf_counter() - began)
                await stream.close(session.session_id)

        until = math.inf  # each once: tasks are drawn, and whatever else is made at first use is made now
        await asyncio.gather(*(play(episodes[number :: load.sessions]) for number in players))
        steps.clear()
        creates.clear()
        began, used = time.perf_counter(), _played_cpu(pid, load)
        until = began + seconds
        await asyncio.gather(*(play(islice(cycle(episodes), number, None, load.sessions)) for number in players))
        elapsed_s, cpu_s = time.perf_counter() - began, max(_played_cpu(pid, load) - used, _TICK_S)
    return Measured(len(steps) / elapsed_s, len(steps) / cpu_s, _p99(steps), 1000 * statistics.median(creates))


async def bytes_per_session(url: str, pid: int, load: Load, env: str, episodes: list[Episode]) -> float:
    """Return the resident memory of the server and its children per open session, after one step in each."""
    async with SessionStream(url) as stream:

        async def open_one(number: int) -> str:
            episode = episodes[number % len(episodes)]
            session = await stream.open(OpenSession(env=env, level=load.level, task_index=episode.index))
            await stream.step(session.session_id, 0, episode.actions[0])
            return session.session_id

        for session_id in [await open_one(number) for number in range(load.sessions)]:  # warm
            await stream.close(session_id)
        await asyncio.sleep(SETTLE_S)
        before = resident_bytes(family(pid))
        opened = [await open_one(number) for number in range(load.held)]
        await asyncio.sleep(SETTLE_S)
        after = resident_bytes(family(pid))
        for session_id in opened:
            await stream.close(session_id)
    return (after - before) / load.held


def measure(env: str, load: Load, seconds: float) -> list[Row]:
    """Return all figures of one environment."""
    entry = load_entry(env, {})
    episodes = episodes_of(entry, load)
    loop = in_a_loop(entry, load, episodes, seconds)
    with tempfile.TemporaryDirectory() as directory:
        server = gateway_fleet.env_server(
            Path(directory), env, shards=str(load.shards), max_sessions=str(load.held + 64)
        )
        with gateway_fleet.running(server):
            through = uvloop.run(served(server.url, server.pid, load, env, episodes, seconds))
            held = uvloop.run(bytes_per_session(server.url, server.pid, load, env, episodes))
    goals = GOALS.get(env, Goals())
    above_us = 1e6 / through.steps_per_cpu_s - 1e6 / loop.steps_per_cpu_s if load.light else math.inf
    at_least = None if above_us <= (goals.above_class_us or 0.0) else goals.served
    rows = [
        Row.of(f"{env}: served", through.steps_per_s, "steps/s", baseline=loop.steps_per_s, goal=at_least),
        Row.of(f"{env}: p99 of a step", through.p99_ms, "ms", baseline=loop.p99_ms),
        Row.of(f"{env}: create", through.create_ms, "ms", baseline=loop.create_ms),
        Row.of(f"{env}: memory per session", held / 1e6, "MB", goal=goals.memory_mb, lower_is_better=True),
    ]
    if load.light:
        above_goal = None if through.steps_per_s >= (goals.served or math.inf) else goals.above_class_us
        name = f"{env}: a shard's time for a step, above the class"
        rows.append(Row.of(name, above_us, "us", goal=above_goal, lower_is_better=True))
        share = through.steps_per_cpu_s / loop.steps_per_cpu_s
        rows.append(Row.of(f"{env}: shard's share of the class, per core", share, "", goal=goals.of_class))
    if env in ENGINES:
        what, engine = ENGINES[env]
        speed = engine(entry, [(_task(entry, load, e.index), e.actions) for e in episodes], seconds)
        rows.append(Row.of(f"{env}: class beside {what}", loop.steps_per_s, "steps/s", baseline=speed))
        rows.append(Row.of(f"{env}: class as a multiple of it", loop.steps_per_s / speed, "", goal=goals.of_engine))
    return rows


def _played_cpu(pid: int, load: Load) -> float:
    """Return the processor seconds of the shard and its children; the front has a core of its own.

    Returns 0 for environments that are not light: their programs come and go.
    """
    if not load.light:
        return 0.0
    _, *shard = family(pid)
    return sum(map(cpu_seconds, shard))


def _p99(seconds: list[float]) -> float:
    return 1000 * statistics.quantiles(seconds, n=100)[98]


def main() -> None:
    """Measure and record."""
    parser = BenchmarkCommand(__doc__, SIZES, smoke=SMOKE)
    parser.add_argument("--env", nargs="*", default=ENVIRONMENTS)
    options = parser.options()
    rows = [
        row
        for env in options.env
        for row in measure(env, LOADS.get(env, Load()).at_most(options.load), options.seconds)
    ]
    record("envs", rows, options)


if __name__ == "__main__":
    main()
