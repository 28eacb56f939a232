"""Episodes on a bad network, and episodes whose processes are killed: how much is lost, doubled or corrupted.

Every observation of the environment is a hash over the episode's actions. The clients compute
it as well, so a step that was lost, taken twice, or taken in another episode shows at once.
Phases: `network` loses 20 % of the replies and doubles 20 % of the requests; `servers` kills
one of four env servers every five seconds, under two gateways that the clients use in turn;
`gateways` kills one of these two gateways instead.
"""

import argparse
import asyncio
import itertools
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import uvloop
from gymfleet_client import ClientError
from gymfleet_client.errors import DeadlinePassed, SessionLost, TransportError, Unavailable, UnknownSession

from benchmarks.calls import Caller
from benchmarks.command import BenchmarkCommand, Size
from benchmarks.leftovers import held
from benchmarks.lossy_proxy import LossyProxy
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.fixtures.fragile_environments import chain
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.redis_server import RedisServer

ENVIRONMENT: Final = "tests.fixtures.fragile_environments:Chain"
PHASES: Final = ("network", "servers", "gateways")
NUM_STEPS: Final = 20
DROP: Final = 0.2
DUPLICATE: Final = 0.2
ANSWER_S: Final = 0.3
"""How long the client on the bad network waits before it asks again."""
SETTLE_S: Final = 3.0
NUM_SERVERS: Final = 4
NUM_GATEWAYS: Final = 2
CALL_S: Final = 30.0
CONNECT_S: Final = 0.2
"""How long a client tries to connect to a missing gateway before it asks the other."""
RETRY_FOR_S: Final = 120.0
RETRY_PAUSE_S: Final = 0.05
GOAL_RESUMED: Final = 0.99
SIZES: Final = {
    "network_episodes": Size(10_000, smoke=32),
    "network_concurrency": Size(512, smoke=16),
    "episodes": Size(5000, smoke=16, help="under kills"),
    "concurrency": Size(256, smoke=16),
    "pause_s": Size(0.2, smoke=0.2, help="before each step, under kills"),
    "kill_every_s": Size(5.0, smoke=3.0),
    "orphan_lease_s": Size(10.0, smoke=2.0, help="of sessions on the bad network"),
}
_RECOVERIES: Final = re.compile(
    r'^gymfleet_gateway_recoveries_total\{.*outcome="([^"]+)".*\} ([0-9.e+]+)$', re.MULTILINE
)
_OPENED: Final = re.compile(r'^gymfleet_gateway_calls_total\{.*op="open",outcome="ok".*\} ([0-9.e+]+)$', re.MULTILINE)


@dataclass
class Seen:
    """Counts over the episodes of one phase."""

    finished: int = 0
    lost_sessions: int = 0
    steps: int = 0
    lost: int = 0
    twice: int = 0
    corrupted: int = 0
    repeated: int = 0
    reopened: int = 0
    waits_s: list[float] = field(default_factory=list)
    """Each episode's longest wait for a step."""
    failures: Counter[str] = field(default_factory=Counter)


class Player:
    """Plays episodes over one or several gateways in turn, and repeats calls that were not answered."""

    def __init__(self, callers: Sequence[Caller], *, pause_s: float, lease_s: float) -> None:
        self._turn = itertools.cycle(callers)
        self._pause_s = pause_s
        self._lease_s = lease_s
        self.seen = Seen()

    async def play(self, numbers: Iterator[int]) -> None:
        """Play episode after episode."""
        for number in numbers:
            try:
                await self._episode(number)
            except (SessionLost, UnknownSession) as error:
                self.seen.lost_sessions += 1
                print(f"lost: {error}", flush=True)
            except ClientError as error:
                self.seen.failures[type(error).__name__] += 1
                print(f"failed: {error}", flush=True)

    async def _episode(self, number: int) -> None:
        seen = self.seen
        session, tries = await self._insist(lambda c: c.open("chain", number % 1000, lease_s=self._lease_s))
        seen.reopened += tries - 1
        session_id, state = session["session_id"], session["observation"]
        longest_s = 0.0
        for index in range(NUM_STEPS):
            if self._pause_s:
                await asyncio.sleep(self._pause_s)
            action = f"{number}/{index}"
            began = time.perf_counter()
            result, tries = await self._insist(partial(_step, session_id, index, action))
            longest_s = max(longest_s, time.perf_counter() - began)
            seen.repeated += tries - 1
            before, state = state, chain(state, action)
            if not self._check(before, action, index, result):
                return
        session, _ = await self._insist(lambda c: c.get(session_id))
        seen.lost += max(NUM_STEPS - session["index"], 0)
        seen.twice += max(session["index"] - NUM_STEPS, 0)
        seen.corrupted += session["observation"] != state
        seen.finished += 1
        seen.waits_s.append(longest_s)
        try:
            await self._insist(lambda c: c.close(session_id))
        except UnknownSession:
            return  # an earlier try closed it, its answer was lost

    def _check(self, before: str, action: str, index: int, result: dict[str, Any]) -> bool:
        """Return whether the step was taken exactly once, in this episode."""
        seen, shown = self.seen, result["observation"]
        seen.steps += 1
        state = chain(before, action)
        if (result["index"], shown) == (index, state):
            return True
        if shown == before:
            seen.lost += 1
        elif shown == chain(state, action):
            seen.twice += 1
        else:
            seen.corrupted += 1
        return False

    async def _insist(self, call: Callable[[Caller], Awaitable[Any]]) -> tuple[Any, int]:
        """Return the answer and the number of tries; if a gateway does not answer, try the next."""
        deadline = time.perf_counter() + RETRY_FOR_S
        for tries in itertools.count(1):
            try:
                return await call(next(self._turn)), tries
            except DeadlinePassed:
                if time.perf_counter() > deadline:
                    raise
            except (TransportError, Unavailable):
                if time.perf_counter() > deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)
        raise AssertionError("unreachable")


async def _step(session_id: str, index: int, action: str, caller: Caller) -> dict[str, Any]:
    return await caller.step(session_id, index, action)


@dataclass(frozen=True)
class Fleet:
    """The running env servers and gateways."""

    servers: Sequence[ServiceProcess]
    gateways: Sequence[ServiceProcess]

    async def metrics(self) -> str:
        """Return the metrics of all gateways."""
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            answers = await asyncio.gather(*(http.get(f"{gateway.url}/metrics") for gateway in self.gateways))
        return "\n".join(answer.text for answer in answers)


@contextmanager
def running(num_servers: int, num_gateways: int) -> Iterator[Fleet]:
    """Run env servers, and gateways that share a Redis."""
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        (logs / "redis").mkdir()
        with RedisServer(logs / "redis") as redis:
            servers = [
                gateway_fleet.env_server(logs, ENVIRONMENT, max_sessions="8192", step_timeout_s="5")
                for _ in range(num_servers)
            ]
            urls = [server.url for server in servers]
            gateways = [gateway_fleet.gateway(logs, urls, redis_url=redis.url) for _ in range(num_gateways)]
            with gateway_fleet.running(*servers, *gateways):
                yield Fleet(servers, gateways)


async def network(num_episodes: int, concurrency: int, lease_s: float) -> list[Row]:
    """Play while replies get lost and requests arrive twice."""
    with running(1, 1) as fleet:
        async with (
            LossyProxy(fleet.gateways[0].url, drop=DROP, duplicate=DUPLICATE, seed=1) as proxy,
            Caller(proxy.url, connections=2, timeout_s=ANSWER_S) as caller,
        ):
            player = Player([caller], pause_s=0.0, lease_s=lease_s)
            numbers = iter(range(num_episodes))
            started = time.perf_counter()
            await asyncio.gather(*(player.play(numbers) for _ in range(concurrency)))
            seconds = time.perf_counter() - started
        opened = sum(map(float, _OPENED.findall(await fleet.metrics())))
        await asyncio.sleep(lease_s + SETTLE_S)
        left = await asyncio.to_thread(held, fleet.servers[0].url)
    seen = player.seen
    requests = proxy.requests.total()
    return [
        Row.of("bad network: episodes finished", seen.finished, "episodes", goal=num_episodes),
        Row.of("  requests that arrived twice", proxy.duplicated / requests, ""),
        Row.of("  replies lost", proxy.dropped / proxy.replies, ""),
        Row.of("  steps", seen.steps, "steps", goal=num_episodes * NUM_STEPS),
        Row.of("  steps asked for again", seen.repeated, "steps"),
        Row.of("  opens asked for again", seen.reopened, "opens"),
        Row.of("  steps lost", seen.lost, "steps", goal=0, lower_is_better=True),
        Row.of("  steps executed twice", seen.twice, "steps", goal=0, lower_is_better=True),
        Row.of("  corrupted trajectories", seen.corrupted, "episodes", goal=0, lower_is_better=True),
        Row.of("  sessions that nobody learnt of, left to their lease", opened - seen.finished, "sessions"),
        Row.of("    of them open after it", left, "sessions", goal=0, lower_is_better=True),
        Row.of("  speed", seen.steps / seconds, "steps/s"),
        *_failures(seen),
    ]


async def kills(
    name: str, options: argparse.Namespace, victims: Callable[[Fleet], Sequence[ServiceProcess]]
) -> list[Row]:
    """Kill one process after the other and start it again, for as long as the episodes last."""
    with running(NUM_SERVERS, NUM_GATEWAYS) as fleet:
        async with (
            Caller(fleet.gateways[0].url, timeout_s=CALL_S, connect_timeout_s=CONNECT_S) as one,
            Caller(fleet.gateways[1].url, timeout_s=CALL_S, connect_timeout_s=CONNECT_S) as other,
        ):
            player = Player([one, other], pause_s=options.pause_s, lease_s=600.0)
            numbers = iter(range(options.episodes))
            started = time.perf_counter()
            playing = [asyncio.create_task(player.play(numbers)) for _ in range(options.concurrency)]
            killed, hit = await _kill(victims(fleet), playing, options.kill_every_s)
            await asyncio.gather(*playing)
            seconds = time.perf_counter() - started
        for service in (*fleet.servers, *fleet.gateways):
            await asyncio.to_thread(service.wait_ready)
        outcomes: Counter[str] = Counter()
        for outcome, number in _RECOVERIES.findall(await fleet.metrics()):
            outcomes[outcome] += int(float(number))
    return _kill_rows(name, player.seen, killed, hit, outcomes, options.episodes, seconds)


async def _kill(
    victims: Sequence[ServiceProcess], playing: Sequence[asyncio.Task[None]], every_s: float
) -> tuple[int, int]:
    """`kill -9` the victims in turn until the episodes are over; return the numbers of kills and of sessions hit."""
    hit = 0
    for number, victim in enumerate(itertools.cycle(victims)):
        _, still = await asyncio.wait(playing, timeout=every_s)
        if not still:
            return number, hit
        hit += await _held(victim)
        await asyncio.to_thread(victim.kill)
        victim.start()
        print(f"kill {number + 1}; {len(still)} of {len(playing)} players have more to play", flush=True)
    raise AssertionError("unreachable")


async def _held(service: ServiceProcess) -> int:
    """Return the number of sessions held there now; 0 for a gateway, or a server that is not up again yet."""
    try:
        return await asyncio.to_thread(held, service.url)
    except httpx.HTTPError:  # a gateway's 404, a server's refusal
        return 0


def _kill_rows(
    name: str, seen: Seen, killed: int, hit: int, outcomes: Counter[str], num_episodes: int, seconds: float
) -> list[Row]:
    corrupted = seen.corrupted + seen.lost + seen.twice
    return [
        Row.of(f"{name} killed: episodes finished", seen.finished, "episodes", goal=GOAL_RESUMED * num_episodes),
        Row.of("  kills", killed, "kills"),
        Row.of("  time", seconds, "s"),
        Row.of("  corrupted trajectories", corrupted, "episodes", goal=0, lower_is_better=True),
        Row.of("  sessions lost, and said to be", seen.lost_sessions, "sessions"),
        *([] if hit == 0 else _recovery_rows(hit, seen.lost_sessions, outcomes)),
        Row.of("  steps asked for again", seen.repeated, "steps"),
        Row.of("  longest pause of an episode", max(seen.waits_s, default=0.0), "s"),
        Row.of("  longest pause of the median episode", statistics.median(seen.waits_s), "s"),
        *_failures(seen),
    ]


def _recovery_rows(hit: int, lost: int, outcomes: Counter[str]) -> list[Row]:
    """Return the rows of recoveries; `found` is a session that the other gateway had already brought back."""
    replayed = outcomes["replayed"]
    return [
        Row.of("  sessions that lived where it struck", hit, "sessions"),
        Row.of("  share of those sought again that went on", replayed / max(replayed + lost, 1), "", goal=GOAL_RESUMED),
        *(Row.of(f"  recoveries, {outcome}", number, "") for outcome, number in sorted(outcomes.items())),
    ]


def _failures(seen: Seen) -> list[Row]:
    return [
        Row.of("  episodes failed otherwise", seen.failures.total(), "episodes", goal=0, lower_is_better=True),
        *(Row.of(f"    {name}", number, "episodes") for name, number in seen.failures.items()),
    ]


async def measure(options: argparse.Namespace) -> list[Row]:
    """Run the requested phases, one after the other."""
    rows: list[Row] = []
    if "network" in options.phases:
        rows += await network(options.network_episodes, options.network_concurrency, options.orphan_lease_s)
    if "servers" in options.phases:
        rows += await kills("env servers", options, lambda fleet: fleet.servers)
    if "gateways" in options.phases:
        rows += await kills("gateways", options, lambda fleet: fleet.gateways)
    return rows


def main() -> None:
    """Measure and record."""
    parser = BenchmarkCommand(__doc__, SIZES)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    options = parser.options()
    record("chaos", uvloop.run(measure(options)), options)


if __name__ == "__main__":
    main()
