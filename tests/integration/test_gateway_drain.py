"""Planned ends: env servers that drain behind a gateway, and gateways that are stopped under their clients."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.session import OpenSession, Session, StepResult
from gymfleet_env_gateway.session_ids import SessionIds, replica_key

from tests.fixtures import gateway_fleet
from tests.fixtures.fragile_environments import chain
from tests.fixtures.gateway_fleet import SECRET, ServiceProcess
from tests.fixtures.redis_server import RedisServer

CLASSES = tuple(f"tests.fixtures.fragile_environments:{name}" for name in ("Chain", "Dice"))
DEADLINE_S = 30.0


def task(env: str, index: int = 0) -> OpenSession:
    return OpenSession(env=env, task_index=index, seed=7)


def lives_on(server: ServiceProcess, session: Session) -> bool:
    return SessionIds(SECRET).read(session.session_id, "local").replica == replica_key(server.url)


class Episode:
    """A session and what its next step must show."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.index = 0
        self.state = session.observation

    async def step(self, client: SessionStream | GatewayClient, action: str = "go") -> None:
        result = await client.step(self.session.session_id, self.index, action)
        self.state = chain(self.state, action)
        assert isinstance(result, StepResult)
        assert (result.index, result.observation) == (self.index, self.state), "lost, repeated or another episode"
        self.index += 1


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.02)


async def is_draining(server: ServiceProcess) -> bool:
    async with httpx.AsyncClient(trust_env=False) as http:
        return bool((await http.get(f"{server.url}/v1/load")).json()["draining"])


async def restart(server: ServiceProcess) -> None:
    """As an orchestrator does: SIGTERM, wait for the end, start the next."""
    server.terminate()
    await until(lambda: not server.alive)
    server.start()
    await asyncio.to_thread(server.wait_ready)


async def both_up(gateway: ServiceProcess) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:

        async def two() -> bool:
            return 'state="up"} 2.0' in (await http.get(f"{gateway.url}/metrics")).text

        await until(two)


async def test_a_rolling_restart_loses_no_session_that_cannot_be_replayed(tmp_path: Path) -> None:
    servers = [gateway_fleet.env_server(tmp_path, *CLASSES, drain_s="60") for _ in range(2)]
    gateway = gateway_fleet.gateway(tmp_path, [server.url for server in servers], probe_interval_s="0.1")
    with gateway_fleet.running(*servers, gateway):
        stop = asyncio.Event()
        replicas: list[set[int]] = [set(), set()]

        async def play(client: SessionStream | GatewayClient, number: int) -> None:
            """Episodes of a second or so, one after the other."""
            round_number = 0
            while not stop.is_set():
                episode = Episode(await client.open(task("dice", number)))
                replicas[lives_on(servers[1], episode.session)].add(round_number)
                for _ in range(30):
                    await episode.step(client)
                    await asyncio.sleep(0.02)
                await client.close(episode.session.session_id)
                round_number += 1

        async with SessionStream(gateway.url) as stream, GatewayClient(gateway.url) as rest:
            players = [asyncio.create_task(play((stream, rest)[number % 2], number)) for number in range(10)]
            for server in servers:
                await both_up(gateway)
                await restart(server)
            stop.set()
            await asyncio.gather(*players)
        assert all(len(rounds) > 1 for rounds in replicas), "both replicas were played on"
        assert "session.lost" not in gateway.log()


async def test_a_replayable_session_that_outlasts_the_drain_moves(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        servers = [gateway_fleet.env_server(tmp_path, *CLASSES, drain_s="0.7") for _ in range(2)]
        gateway = gateway_fleet.gateway(tmp_path, [server.url for server in servers], redis_url=redis.url)
        with gateway_fleet.running(*servers, gateway):
            async with SessionStream(gateway.url) as stream:
                episodes = [Episode(await stream.open(task("chain", index))) for index in range(10)]
                leaving = [episode for episode in episodes if lives_on(servers[0], episode.session)]
                assert leaving
                servers[0].terminate()
                while servers[0].alive:
                    await asyncio.gather(*(episode.step(stream) for episode in episodes))
                for _ in range(3):
                    await asyncio.gather(*(episode.step(stream) for episode in episodes))
            assert gateway.log().count("session.recovered") == len(leaving)


async def test_an_open_goes_elsewhere_from_the_first_moment(tmp_path: Path) -> None:
    """The gateway has not been told yet: its next probe is half a minute away."""
    servers = [gateway_fleet.env_server(tmp_path, *CLASSES, drain_s="60") for _ in range(2)]
    slow = {"probe_interval_s": "30", "unresponsive_after_s": "60"}
    gateway = gateway_fleet.gateway(tmp_path, [server.url for server in servers], **slow)
    # One after the other: a server that is up later than the gateway's first look is not seen for half a minute.
    with gateway_fleet.running(*servers), gateway_fleet.running(gateway):
        async with SessionStream(gateway.url) as stream:
            held = [Episode(await stream.open(task("dice", index))) for index in range(6)]
            assert {lives_on(servers[0], episode.session) for episode in held} == {True, False}
            servers[0].terminate()
            await until(lambda: is_draining(servers[0]))

            opened = await asyncio.gather(*(stream.open(task("dice", index)) for index in range(12)))

            assert all(lives_on(servers[1], session) for session in opened)
            await asyncio.gather(*(episode.step(stream) for episode in held))
            for session in (*opened, *(episode.session for episode in held)):
                await stream.close(session.session_id)
            await until(lambda: not servers[0].alive)


@asynccontextmanager
async def one_address(*gateways: ServiceProcess) -> AsyncIterator[str]:
    """The URL of a load balancer: each connection goes to the next gateway that takes it."""
    turn = itertools.cycle(gateways)
    relays: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for gateway in itertools.islice(turn, len(gateways)):
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", urlsplit(gateway.url).port)
                relays.add(asyncio.current_task())  # type: ignore[arg-type]
                await asyncio.gather(pump(reader, back), pump(there, writer))
                return
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for relay in relays:
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


async def played_while(url: str, change: Callable[[], Awaitable[Any]], *, over_rest: bool = True) -> None:
    """Many calls at any moment, over the stream and over REST, before, while and after `change` is made."""
    stop = asyncio.Event()
    async with SessionStream(url) as stream, GatewayClient(url) as rest:
        episodes = [Episode(await stream.open(task("chain", index))) for index in range(24)]

        async def play(episode: Episode, client: SessionStream | GatewayClient) -> None:
            while not stop.is_set():
                await episode.step(client, f"sleep {5 + episode.index % 10}")

        players = [
            asyncio.create_task(play(e, rest if over_rest and n % 2 else stream)) for n, e in enumerate(episodes)
        ]
        await asyncio.sleep(0.5)
        await change()
        before = [episode.index for episode in episodes]
        await until(
            lambda: (
                any(player.done() for player in players)
                or all(episode.index > past + 2 for episode, past in zip(episodes, before, strict=True))
            )
        )
        stop.set()
        await asyncio.gather(*players)
        for episode in episodes:
            seen = await stream.get(episode.session.session_id)
            assert (seen.index, seen.observation) == (episode.index, episode.state), "nothing more was executed"
            await stream.close(episode.session.session_id)


@pytest.mark.parametrize("journaled", [True, False], ids=["with a journal", "without"])
async def test_a_gateway_that_is_stopped_in_mid_call_is_replaced_by_another(tmp_path: Path, journaled: bool) -> None:
    with RedisServer(tmp_path) as redis:
        server = gateway_fleet.env_server(tmp_path, *CLASSES, shards="2")
        more = {"redis_url": redis.url} if journaled else {}
        gateways = [gateway_fleet.gateway(tmp_path, [server.url], **more) for _ in range(2)]
        with gateway_fleet.running(server, *gateways):
            async with one_address(*gateways) as url:

                async def stop_one() -> None:
                    gateways[0].terminate()
                    await until(lambda: not gateways[0].alive)

                await played_while(url, stop_one)


async def test_a_gateway_restarts_on_its_port_and_its_clients_go_on(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        server = gateway_fleet.env_server(tmp_path, *CLASSES)
        gateway = gateway_fleet.gateway(tmp_path, [server.url], redis_url=redis.url)
        with gateway_fleet.running(server, gateway):
            # A REST call does not wait for a port that nobody listens on; the stream reconnects.
            await played_while(gateway.url, lambda: restart(gateway), over_rest=False)


async def test_opens_and_forks_that_a_leaving_gateway_did_not_take_up_are_asked_elsewhere(tmp_path: Path) -> None:
    """They must not be repeated blindly, and need not be: a gateway answers what it took up before it goes."""
    with RedisServer(tmp_path) as redis:
        server = gateway_fleet.env_server(tmp_path, *CLASSES)
        gateways = [gateway_fleet.gateway(tmp_path, [server.url], redis_url=redis.url) for _ in range(2)]
        with gateway_fleet.running(server, *gateways):
            stop = asyncio.Event()
            rounds = 0

            async def play(client: SessionStream, number: int) -> None:
                nonlocal rounds
                while not stop.is_set():
                    session = await client.open(task("chain", number))
                    await client.step(session.session_id, 0, "go")
                    family = [session, *await client.fork(session.session_id, 2)]
                    for member in family:
                        await client.close(member.session_id)
                    rounds += 1

            async with one_address(*gateways) as url, SessionStream(url, connections=4) as stream:
                players = [asyncio.create_task(play(stream, number)) for number in range(16)]
                for gateway in gateways:
                    await asyncio.sleep(0.5)
                    await restart(gateway)
                    before = rounds
                    await until(lambda: rounds > before + 50 or any(player.done() for player in players))  # noqa: B023
                stop.set()
                await asyncio.gather(*players)

            async def empty() -> bool:
                async with httpx.AsyncClient(trust_env=False) as http:
                    return not (await http.get(f"{server.url}/v1/load")).json()["sessions"]

            await until(empty)
        assert all('"gateway.drained"' in gateway.log() for gateway in gateways)
