"""Replicas come and go under running episodes: real env servers on addresses of their own, two real gateways."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.session import OpenSession, Session, SessionStep, StepResult
from gymfleet_env_gateway.app import build_app
from gymfleet_env_gateway.metrics import RECOVERIES
from gymfleet_env_gateway.replica import ReplicaState
from gymfleet_env_gateway.session_ids import SessionIds, replica_key
from gymfleet_env_gateway.settings import GatewaySettings
from prometheus_client import CollectorRegistry

from tests.fixtures.fragile_environments import chain
from tests.fixtures.gateway_fleet import SECRET, ServiceProcess
from tests.fixtures.ports import free_port
from tests.fixtures.redis_server import RedisServer
from tests.fixtures.resolver import Resolver

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
CLASSES = tuple(f"tests.fixtures.fragile_environments:{name}" for name in ("Chain", "Dice"))
DEADLINE_S = 20.0


def common_port() -> int:
    """A port that is free on all the hosts."""
    while True:
        port = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for host in HOSTS:
                stack.enter_context(socket.socket()).bind((host, port))
            return port


class EnvServers:
    """Env servers as a headless service has them: one port, one address each."""

    def __init__(self, directory: Path) -> None:
        self.port = common_port()
        self._services = {host: self._service(directory, host) for host in HOSTS}

    def _service(self, directory: Path, host: str) -> ServiceProcess:
        env = {"GYMFLEET_ENV_HOST": host, "GYMFLEET_ENV_PORT": str(self.port)}
        service = ServiceProcess(["gymfleet-env-server", *CLASSES], env, self.port, directory / f"{host}.log")
        service.url = f"http://{host}:{self.port}"
        return service

    async def start(self, *hosts: str) -> None:
        for host in hosts:
            if not self._services[host].alive:
                self._services[host].start()
        for host in hosts:
            await asyncio.to_thread(self._services[host].wait_ready)

    def kill(self, host: str) -> None:
        self._services[host].kill()

    def stop(self) -> None:
        for service in self._services.values():
            service.stop()

    def host(self, session: Session) -> str:
        """Where a session was opened."""
        key = SessionIds(SECRET).read(session.session_id, "local").replica
        return next(host for host, service in self._services.items() if replica_key(service.url) == key)


class _Server(uvicorn.Server):
    """Within the test's loop: signals are pytest's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


class Gateways:
    """Makes gateways over names that `resolver` knows."""

    def __init__(self, servers: EnvServers, redis: RedisServer, resolver: Resolver) -> None:
        self._servers = servers
        self._redis = redis
        self.resolver = resolver

    @asynccontextmanager
    async def serving(self, name: str = "env.fleet", **settings: Any) -> AsyncIterator[tuple[str, FastAPI]]:
        """The URL of a gateway that serves while the block runs, and its app."""
        given = {
            "discover": [f"http://{name}:{self._servers.port}"], "discover_interval_s": 0.1, "probe_interval_s": 0.1,
            "secret": SECRET, "redis_url": self._redis.url, **settings,
        }  # fmt: skip
        app = build_app(GatewaySettings.model_validate(given), registry=CollectorRegistry())
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            config = uvicorn.Config(app, ws="websockets-sansio", log_config=None, timeout_graceful_shutdown=5)
            server = _Server(config)
            task = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                assert not task.done(), task
                await asyncio.sleep(0.01)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}", app
            finally:
                server.should_exit = True
                await task


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServers]:
    made = EnvServers(tmp_path_factory.mktemp("servers"))
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def gateways(servers: EnvServers, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Gateways:
    loop = asyncio.get_running_loop()
    resolver = Resolver(loop.getaddrinfo)
    monkeypatch.setattr(loop, "getaddrinfo", resolver)
    return Gateways(servers, redis_server, resolver)


def replicas(app: FastAPI, host: str) -> list[Any]:
    found = app.state.gateway.registry._replicas.values()
    return [replica for replica in found if f"//{host}:" in replica.url]


def known(app: FastAPI) -> set[str]:
    """Hosts of the replicas that a gateway can use."""
    return {host for host in HOSTS if any(replica.state is ReplicaState.UP for replica in replicas(app, host))}


def recoveries() -> dict[str, float]:
    """By outcome, of all gateways of this process."""
    samples = (sample for family in RECOVERIES.collect() for sample in family.samples)
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.name.endswith("_total")}


async def until(condition: Callable[[], bool], playing: Iterable[asyncio.Task[None]] = ()) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        for player in playing:
            if player.done():
                player.result()
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


def task(env: str = "chain", index: int = 0) -> OpenSession:
    return OpenSession(env=env, task_index=index, seed=3)


class Episode:
    """A session and what its next step must show."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.index = session.index
        self.state = session.observation

    def check(self, result: object, action: str = "go") -> None:
        assert isinstance(result, StepResult), result
        self.state = chain(self.state, action)
        assert (result.index, result.observation) == (self.index, self.state)
        self.index += 1


async def play(client: SessionStream | GatewayClient, episode: Episode, stop: asyncio.Event) -> None:
    while not stop.is_set():
        episode.check(await client.step(episode.session.session_id, episode.index, "go"))
        await asyncio.sleep(0.01)


async def play_batch(client: GatewayClient, episodes: list[Episode], stop: asyncio.Event) -> None:
    while not stop.is_set():
        items = [SessionStep(session_id=e.session.session_id, index=e.index, action="go") for e in episodes]
        for episode, result in zip(episodes, await client.steps(items), strict=True):
            episode.check(result)
        await asyncio.sleep(0.01)


async def test_replicas_come_and_go_under_episodes_of_stream_rest_and_batch(
    servers: EnvServers, gateways: Gateways
) -> None:
    first, second, third = HOSTS
    await servers.start(*HOSTS)
    names = gateways.resolver.addresses
    names["env.fleet"] = [first, second]
    async with (
        gateways.serving() as (one, app),
        gateways.serving() as (two, other_app),
        SessionStream(one) as stream,
        GatewayClient(two) as rest,
    ):
        episodes = [Episode(await stream.open(task(index=index))) for index in range(12)]
        assert {servers.host(episode.session) for episode in episodes} == {first, second}
        stop = asyncio.Event()
        players = [asyncio.create_task(play(stream, episode, stop)) for episode in episodes[:4]]
        players += [asyncio.create_task(play(rest, episode, stop)) for episode in episodes[4:8]]
        players.append(asyncio.create_task(play_batch(rest, episodes[8:], stop)))

        names["env.fleet"] = [first, second, third]
        await until(lambda: known(app) == known(other_app) == {*HOSTS})
        late = [Episode(await rest.open(task(index=index))) for index in range(6)]
        assert third in {servers.host(episode.session) for episode in late}, "the new one is the emptiest"
        players += [asyncio.create_task(play(stream, episode, stop)) for episode in late]

        names["env.fleet"] = [second, third]
        await until(lambda: not any(r.listed for r in replicas(app, first) + replicas(other_app, first)))
        steps = {id(episode): episode.index for episode in episodes}
        newer = [Episode(await client.open(task())) for client in (stream, rest) for _ in range(6)]
        assert first not in {servers.host(episode.session) for episode in newer}
        await until(lambda: all(episode.index > steps[id(episode)] + 3 for episode in episodes), players)
        assert known(app) == {*HOSTS}, "it lives and holds sessions: it is kept"

        servers.kill(first)
        await until(lambda: known(app) == known(other_app) == {second, third})
        steps = {id(episode): episode.index for episode in episodes}
        await until(lambda: all(episode.index > steps[id(episode)] + 3 for episode in episodes), players)
        stop.set()
        await asyncio.gather(*players)


@pytest.mark.parametrize("env", ["chain", "dice"])
async def test_sessions_of_a_replica_that_this_gateway_has_not_found_yet(
    servers: EnvServers, gateways: Gateways, env: str
) -> None:
    """Many at once: for each the gateway must wait until it has looked, or it would take them for lost."""
    first, second, _ = HOSTS
    await servers.start(first, second)
    names = gateways.resolver.addresses
    names |= {"one.fleet": [second], "two.fleet": [first]}
    async with (
        gateways.serving("one.fleet") as (one, _app),
        gateways.serving("two.fleet", discover_interval_s=3600.0) as (two, app),
        SessionStream(one) as stream,
        SessionStream(two) as other,
    ):
        sessions = [await stream.open(task(env, index)) for index in range(10)]
        assert {servers.host(session) for session in sessions} == {second}
        names["two.fleet"] = [first, second]
        assert known(app) == {first}
        before = recoveries()

        results = await asyncio.gather(*(other.step(session.session_id, 0, "go") for session in sessions))

        assert [r.observation for r in results] == [chain(session.observation, "go") for session in sessions]
        assert known(app) == {first, second}
        assert recoveries() == before, "they were stepped where they live, not replayed"


async def test_a_name_that_fails_costs_no_session(servers: EnvServers, gateways: Gateways) -> None:
    first, second, _ = HOSTS
    await servers.start(first, second)
    names = gateways.resolver.addresses
    names["env.fleet"] = [first, second]
    async with gateways.serving() as (one, app), SessionStream(one) as stream:
        episodes = [Episode(await stream.open(task("dice", index))) for index in range(4)]
        del names["env.fleet"]
        asked = len(gateways.resolver.asked)
        await until(lambda: len(gateways.resolver.asked) > asked + 2)

        for episode in (*episodes, Episode(await stream.open(task()))):
            episode.check(await stream.step(episode.session.session_id, 0, "go"))
        assert known(app) == {first, second}
