"""Processes die under running episodes: what can be replayed goes on, the rest is reported, nothing is replaced."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_client.errors import SessionLost, StepOutOfOrder, StepTimeout, Unavailable, UnknownSession
from gymfleet_client.multiplex import FrameChannel
from gymfleet_contracts.frames import Op
from gymfleet_contracts.session import OpenSession, Session, SessionStep, StepResult
from gymfleet_env_gateway.gateway_membership import KEY
from gymfleet_env_gateway.journal import Journal, SessionLocation
from gymfleet_env_gateway.session_ids import SessionIds, replica_key
from gymfleet_kit.streams import RedisClient, connect, disconnect

from tests.fixtures import gateway_fleet
from tests.fixtures.fragile_environments import chain
from tests.fixtures.gateway_fleet import SECRET, ServiceProcess
from tests.fixtures.redis_server import RedisServer

CLASSES = tuple(f"tests.fixtures.fragile_environments:{name}" for name in ("Chain", "Dice", "Liar", "Moody", "Hidden"))
ENV_SETTINGS = {"shards": "2", "step_timeout_s": "2"}
DETECTION_S = 2.0


@dataclass(frozen=True)
class Fleet:
    """Two replicas behind two gateways that share a Redis."""

    redis: RedisServer
    servers: tuple[ServiceProcess, ServiceProcess]
    gateways: tuple[ServiceProcess, ServiceProcess]

    def location(self, session: Session) -> ServiceProcess:
        """Where a session was opened."""
        key = SessionIds(SECRET).read(session.session_id, "local").replica
        return next(server for server in self.servers if replica_key(server.url) == key)


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("fleet")
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        first, second = (gateway_fleet.env_server(logs, *CLASSES, **ENV_SETTINGS) for _ in range(2))
        urls = [first.url, second.url]
        gateways = tuple(gateway_fleet.gateway(logs, urls, redis_url=redis.url, max_recoveries="3") for _ in range(2))
        with gateway_fleet.running(first, second, *gateways):
            yield Fleet(redis, (first, second), (gateways[0], gateways[1]))


@pytest.fixture
async def fleet(shared_fleet: Fleet) -> Fleet:
    """The fleet with everything up, whatever the test before did to it."""
    for service in (*shared_fleet.servers, *shared_fleet.gateways):
        if not service.alive:
            service.start()
    for service in (*shared_fleet.servers, *shared_fleet.gateways):
        await asyncio.to_thread(service.wait_ready)
    deadline = time.monotonic() + gateway_fleet.START_TIMEOUT_S
    async with httpx.AsyncClient(trust_env=False) as http:
        for gateway in shared_fleet.gateways:
            while 'state="up"} 2.0' not in (await http.get(f"{gateway.url}/metrics")).text:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
    return shared_fleet


@pytest.fixture
async def stream(fleet: Fleet) -> AsyncIterator[SessionStream]:
    async with SessionStream(fleet.gateways[0].url) as opened:
        yield opened


@pytest.fixture
async def redis(fleet: Fleet) -> AsyncIterator[RedisClient]:
    client = connect(fleet.redis.url)
    yield client
    await disconnect(client)


def task(env: str = "chain", index: int = 0, **more: float) -> OpenSession:
    return OpenSession(env=env, task_index=index, seed=5, lease_s=more.get("lease_s", 120))


class Player:
    """Plays a session of `chain` and knows what each step must show."""

    def __init__(self, client: SessionStream | GatewayClient, session: Session) -> None:
        self.client = client
        self.session = session
        self.state = session.observation
        self.index = session.index

    async def step(self, action: str = "go") -> StepResult:
        result = await self.client.step(self.session.session_id, self.index, action)
        self.state = chain(self.state, action)
        assert (result.index, result.observation) == (self.index, self.state), "another episode than this one"
        self.index += 1
        return result


async def players_on(fleet: Fleet, server: ServiceProcess, client: SessionStream, count: int) -> list[Player]:
    """Episodes on one of the replicas, a few steps old."""
    players: list[Player] = []
    elsewhere: list[str] = []  # kept open meanwhile: opens go to the emptier replica
    while len(players) < count:
        player = Player(client, await client.open(task(index=len(players))))
        if fleet.location(player.session) is server:
            players.append(player)
            for step in range(3):
                await player.step(f"step {step}")
        else:
            elsewhere.append(player.session.session_id)
    for session_id in elsewhere:
        await client.close(session_id)
    return players


async def test_kill_9_of_a_replica_in_mid_step_is_not_noticed(fleet: Fleet, stream: SessionStream) -> None:
    victim = fleet.servers[0]
    idle, *busy = await players_on(fleet, victim, stream, 6)
    in_flight = [asyncio.create_task(player.step("sleep 400")) for player in busy]
    await asyncio.sleep(0.1)

    victim.kill()
    killed_at = time.monotonic()
    await asyncio.gather(*in_flight, idle.step("another"))
    assert time.monotonic() - killed_at < DETECTION_S + 0.4 * len(busy), "the steps themselves take 0.4 s each"

    async with GatewayClient(fleet.gateways[1].url) as rest:  # the other gateway finds them where they are now
        for player in (idle, *busy):
            player.client = rest
            await player.step("over REST")
        items = [SessionStep(session_id=p.session.session_id, index=p.index, action="batch") for p in busy]
        results = await rest.steps(items)
        for player, result in zip(busy, results, strict=True):
            assert isinstance(result, StepResult)
            assert result.observation == chain(player.state, "batch")


async def test_a_lost_answer_is_the_same_after_the_move(fleet: Fleet, stream: SessionStream) -> None:
    (player,) = await players_on(fleet, fleet.servers[0], stream, 1)
    before = await stream.step(player.session.session_id, 3, "the last")
    fleet.servers[0].kill()
    with pytest.raises(StepOutOfOrder):
        await stream.step(player.session.session_id, 3, "not the last")
    after = await stream.step(player.session.session_id, 3, "the last")
    assert after == before.model_copy(update={"info": {"recovered": 1}})
    assert (await stream.get(player.session.session_id)).index == 4


async def test_who_asked_for_state_keys_gets_them_after_the_move_and_nobody_else(
    fleet: Fleet, stream: SessionStream
) -> None:
    asked = [await stream.open(task().model_copy(update={"state_keys": True})) for _ in range(4)]
    others = [await stream.open(task()) for _ in range(4)]
    before = {await _key_after(stream, session, 0) for session in asked}
    assert len(before) == 1
    for server in fleet.servers:
        server.kill()
        server.start()
        await asyncio.to_thread(server.wait_ready)
    after = {await _key_after(stream, session, 1) for session in asked}
    assert len(after) == 1
    assert None not in before | after
    assert before != after
    assert {await _key_after(stream, session, 0) for session in others} == {None}


async def _key_after(stream: SessionStream, session: Session, index: int) -> str | None:
    return (await stream.step(session.session_id, index, "on")).state_key


async def test_a_shard_that_dies_takes_nothing_with_it(fleet: Fleet, stream: SessionStream) -> None:
    players = await players_on(fleet, fleet.servers[0], stream, 8)
    for pid in children(fleet.servers[0].pid):
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*(player.step("on") for player in players))


async def test_two_gateways_that_recover_a_session_at_once_agree(fleet: Fleet, stream: SessionStream) -> None:
    players = await players_on(fleet, fleet.servers[0], stream, 3)
    await asyncio.gather(*(player.step("sleep 300") for player in players))  # so long do both replay at once
    held = await sessions_on(fleet.servers[1])
    fleet.servers[0].kill()
    async with SessionStream(fleet.gateways[1].url) as other:
        twins = [Player(other, player.session) for player in players]
        for twin, player in zip(twins, players, strict=True):
            twin.state, twin.index = player.state, player.index
        await asyncio.gather(*(twin.step("next") for pair in zip(players, twins, strict=True) for twin in pair))
        for player in players:
            await player.step("and on")
    assert await sessions_on(fleet.servers[1]) - held == len(players), "each was brought back once"


async def test_a_gateway_dies_and_another_serves_its_sessions(fleet: Fleet, stream: SessionStream) -> None:
    players = await players_on(fleet, fleet.servers[0], stream, 3)
    fleet.gateways[0].kill()
    async with SessionStream(fleet.gateways[1].url) as other:
        for player in players:
            player.client = other
            await player.step("elsewhere")
        fleet.servers[0].kill()
        for player in players:
            await player.step("and there too")


async def test_a_rolling_restart_of_all_replicas_loses_nothing(fleet: Fleet, stream: SessionStream) -> None:
    players = [Player(stream, await stream.open(task(index=index))) for index in range(12)]
    done = asyncio.Event()

    async def play(player: Player) -> None:
        while not done.is_set():
            await player.step("go")
            await asyncio.sleep(0.02)

    playing = [asyncio.create_task(play(player)) for player in players]
    for server in fleet.servers:
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(0.3)
        server.start()
        await asyncio.to_thread(server.wait_ready)
        await asyncio.sleep(1.0)
    done.set()
    await asyncio.gather(*playing)


async def test_the_only_replica_restarts_and_the_episode_waits_for_it(fleet: Fleet, stream: SessionStream) -> None:
    for server in fleet.servers:
        server.kill()
    fleet.servers[0].start()
    player = Player(stream, await open_when_possible(stream))
    await player.step("one")
    fleet.servers[0].kill()
    waiting = asyncio.create_task(player.step("two"))
    await asyncio.sleep(1.0)
    fleet.servers[0].start()
    await waiting


@pytest.mark.parametrize("env", ["dice", "liar"])
async def test_what_cannot_be_replayed_is_reported(fleet: Fleet, stream: SessionStream, env: str) -> None:
    session = await on(fleet, fleet.servers[0], stream, env)
    for index in range(2):
        await stream.step(session.session_id, index, "go")
    fleet.servers[0].kill()
    for _ in range(2):
        with pytest.raises(SessionLost):
            await stream.step(session.session_id, 2, "go")
    with pytest.raises(SessionLost):
        await stream.get(session.session_id)


async def test_words_that_change_are_no_divergence_where_that_was_said(fleet: Fleet, stream: SessionStream) -> None:
    session = await on(fleet, fleet.servers[0], stream, "moody")
    state = session.observation
    for index in range(3):
        state = chain(state, "go")
        assert (await stream.step(session.session_id, index, "go")).observation.startswith(state)
        if index == 1:
            fleet.servers[0].kill()


async def test_a_replay_that_leads_to_another_state_is_no_recovery(fleet: Fleet, stream: SessionStream) -> None:
    same, lucky = [await on(fleet, fleet.servers[0], stream, "hidden") for _ in range(2)]
    for index, actions in enumerate([("write", "write"), ("read", "draw"), ("read", "read")]):
        for session, action in zip((same, lucky), actions, strict=True):
            result = await stream.step(session.session_id, index, action)
            assert result.info == {}
    fleet.servers[0].kill()

    with pytest.raises(SessionLost, match="step 1"):
        await stream.step(lucky.session_id, 3, "read")
    for index in (3, 4):
        assert (await stream.step(same.session_id, index, "read")).info == {"recovered": 1}
    assert (await stream.get(same.session_id)).info == {"recovered": 1}
    (child,) = await stream.fork(same.session_id)
    assert (await stream.step(child.session_id, 5, "read")).info == {"recovered": 1}
    with pytest.raises(SessionLost):
        await stream.get(lucky.session_id)


async def test_the_digest_of_a_state_is_told_to_gateways_alone(fleet: Fleet) -> None:
    async def states(url: str) -> list[str]:
        channel = FrameChannel(url)
        try:
            opened, _ = await channel.request(
                Op.OPEN, "", {"env": "hidden", "task_index": 0}, timeout_s=10, repeatable=False
            )
            session = Session.model_validate(msgspec.msgpack.decode(opened.ok))
            body = {"index": 0, "action": "go"}
            stepped, _ = await channel.request(Op.STEP, session.session_id, body, timeout_s=10, repeatable=True)
            await channel.request(Op.CLOSE, session.session_id, None, timeout_s=10, repeatable=True)
            assert b"state" not in bytes(opened.ok) + bytes(stepped.ok)
            return [opened.state, stepped.state]
        finally:
            await channel.aclose()

    start, after = await states(fleet.servers[0].url)
    assert after == chain(start, "go")
    assert await states(fleet.gateways[0].url) == ["", ""]


async def test_a_journal_that_missed_steps_is_not_played(fleet: Fleet, stream: SessionStream) -> None:
    """Redis is away for three steps, and the gateway that knows of it dies: what is left tells of half an episode."""
    (player,) = await players_on(fleet, fleet.servers[0], stream, 1)
    session_id = player.session.session_id
    await asyncio.to_thread(fleet.redis.stop)
    for _ in range(3):
        await player.step("unwritten")
    fleet.gateways[0].kill()
    await asyncio.to_thread(fleet.redis.start)
    fleet.servers[0].kill()

    async with SessionStream(fleet.gateways[1].url) as other, GatewayClient(fleet.gateways[1].url) as rest:
        for client in (other, rest):
            for call in (
                client.get(session_id), client.get(session_id, index=6), client.fork(session_id),
                client.fork(session_id, index=6), client.expert(session_id), client.step(session_id, 6, "go"),
            ):  # fmt: skip
                with pytest.raises(SessionLost):
                    await call


async def test_after_a_restart_of_redis_who_knows_the_index_goes_on(fleet: Fleet, stream: SessionStream) -> None:
    told, stepped, asked, unknown = await players_on(fleet, fleet.servers[0], stream, 4)
    await asyncio.to_thread(fleet.redis.stop)
    await asyncio.to_thread(fleet.redis.start)
    await told.step("go")
    fleet.servers[0].kill()

    assert (await stream.get(told.session.session_id)).index == told.index, "a step since then vouches for it"
    await stepped.step("on")
    (child,) = await stream.fork(asked.session.session_id, index=3)
    assert (child.index, child.observation) == (3, asked.state)
    with pytest.raises(SessionLost):
        await stream.get(unknown.session.session_id)
    await unknown.step("and so does a step now")


async def test_another_index_than_the_sessions_is_refused(fleet: Fleet, stream: SessionStream) -> None:
    (player,) = await players_on(fleet, fleet.servers[0], stream, 1)
    session_id = player.session.session_id
    async with GatewayClient(fleet.gateways[0].url) as rest:
        for client in (stream, rest):
            for call in (client.get(session_id, index=2), client.fork(session_id, index=4)):
                with pytest.raises(StepOutOfOrder):
                    await call
            assert (await client.get(session_id, index=3)).index == 3
            assert len(await client.fork(session_id, 2, index=3)) == 2


async def test_a_session_that_kills_its_process_each_time_is_given_up(fleet: Fleet, stream: SessionStream) -> None:
    killer, *neighbours = await players_on(fleet, fleet.servers[0], stream, 4)
    before = await deaths(fleet)
    with pytest.raises(SessionLost):
        await killer.step("exit")
    with pytest.raises(SessionLost):
        await killer.step("exit")
    await asyncio.gather(*(player.step("alive") for player in neighbours))
    assert await deaths(fleet) - before == 2, "the first might have had another cause"


@pytest.mark.parametrize(("does", "killed"), [("exit", 2), ("hang", 1)])
async def test_a_step_that_kills_when_it_is_replayed_is_not_replayed_for_ever(
    fleet: Fleet, stream: SessionStream, tmp_path: Path, does: str, killed: int
) -> None:
    (player,) = await players_on(fleet, fleet.servers[0], stream, 1)
    await player.step(f"{does} again {tmp_path / 'taken'}")
    before = await deaths(fleet)
    fleet.servers[0].kill()
    for _ in range(2):
        with pytest.raises(SessionLost):
            await player.step("on")
    assert await deaths(fleet) - before == killed


async def test_a_session_is_moved_as_often_as_its_gateways_allow(fleet: Fleet, stream: SessionStream) -> None:
    """Without a step in between; these allow it three times."""
    (player,) = await players_on(fleet, fleet.servers[0], stream, 1)
    for _ in range(3):
        await kill_all_shards(fleet)
        assert (await stream.get(player.session.session_id)).index == 3
    await kill_all_shards(fleet)
    with pytest.raises(SessionLost, match="4 processes died under it without a step between"):
        await stream.get(player.session.session_id)


async def kill_all_shards(fleet: Fleet) -> None:
    for pid in (pid for server in fleet.servers for pid in children(server.pid)):
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(1.0)  # a replica starts its shards anew


async def test_a_step_that_hangs_is_reported_and_its_neighbours_go_on(fleet: Fleet, stream: SessionStream) -> None:
    hung, *neighbours = await players_on(fleet, fleet.servers[0], stream, 6)
    with pytest.raises(StepTimeout):
        await hung.step("sleep 60000")
    await asyncio.gather(*(player.step("alive") for player in neighbours))
    with pytest.raises(SessionLost):
        await hung.step("sleep 60000")


async def test_children_of_a_session_outlive_its_process_as_it_does(fleet: Fleet, stream: SessionStream) -> None:
    (parent,) = await players_on(fleet, fleet.servers[0], stream, 1)
    children = [Player(stream, child) for child in await stream.fork(parent.session.session_id, 3)]
    for number, child in enumerate(children):
        await child.step(f"child {number}")
    fleet.servers[0].kill()
    for player in (*children, parent):
        await player.step("after")
    grandchildren = await stream.fork(children[0].session.session_id, 2)
    assert {child.observation for child in grandchildren} == {children[0].state}
    assert {child.index for child in grandchildren} == {children[0].index}


@pytest.mark.parametrize("asked", ["the last step", "the next step", "the session"])
async def test_an_old_home_that_still_lives_is_not_believed(
    fleet: Fleet, stream: SessionStream, redis: RedisClient, asked: str
) -> None:
    """Another gateway took the replica for dead and moved the session; this one still reaches the old copy."""
    (player,) = await players_on(fleet, fleet.servers[0], stream, 1)
    async with GatewayClient(fleet.servers[1].url) as direct:
        copy = Player(direct, await direct.open(task()))
        for step in range(3):
            await copy.step(f"step {step}")
        await copy.step("what the other gateway did")
    journal = Journal(redis, timeout_s=5)
    await journal.start()
    ref = SessionIds(SECRET).read(player.session.session_id, "local")
    new = SessionLocation(replica_key(fleet.servers[1].url), copy.session.session_id)
    await journal.move(player.session.session_id, SessionLocation(ref.replica, ref.upstream), new)
    await journal.aclose()

    if asked == "the last step":
        with pytest.raises(StepOutOfOrder):
            await stream.step(player.session.session_id, 3, "something else")
        result = await stream.step(player.session.session_id, 3, "what the other gateway did")
        assert result.observation == copy.state, "step 3 was taken there, and is not taken again"
    elif asked == "the session":
        assert (await stream.get(player.session.session_id)).index == 4
    player.state, player.index = copy.state, 4
    await player.step("on")


async def test_a_home_that_came_back_unnoticed_is_looked_at_before_it_is_given_up(
    fleet: Fleet, stream: SessionStream, tmp_path: Path
) -> None:
    """This gateway saw the server die; the other one has already opened a session on its successor."""
    for server in fleet.servers:
        server.kill()
    late = gateway_fleet.gateway(
        tmp_path, [server.url for server in fleet.servers], redis_url=fleet.redis.url, probe_interval_s="60",
        unresponsive_after_s="90", startup_grace_s="0.1",
    )  # fmt: skip
    late.start()
    try:
        await answers(late)
        fleet.servers[0].start()
        player = Player(stream, await open_when_possible(stream))
        async with SessionStream(late.url) as other:
            player.client = other
            await player.step("one")
        assert "session.recovered" not in late.log()
    finally:
        await asyncio.to_thread(late.stop)


async def test_closing_leaves_nothing_behind(fleet: Fleet, stream: SessionStream, redis: RedisClient) -> None:
    await redis.flushdb()
    players = await players_on(fleet, fleet.servers[0], stream, 3)
    fleet.servers[0].kill()
    await players[0].step("moved")
    for player in players:  # one was moved, the others died with their replica
        await stream.close(player.session.session_id)
    assert set(await redis.keys("*")) <= {KEY.encode()}, "nothing but the list of gateways"
    with pytest.raises((UnknownSession, SessionLost)):
        await stream.step(players[0].session.session_id, 4, "again")


async def test_a_lease_that_ran_out_leaves_nothing_behind(
    fleet: Fleet, stream: SessionStream, redis: RedisClient
) -> None:
    await redis.flushdb()
    session = await stream.open(task(lease_s=1.0))
    await stream.step(session.session_id, 0, "go")
    await asyncio.sleep(1.3)
    with pytest.raises(UnknownSession):
        await stream.step(session.session_id, 1, "go")
    assert set(await redis.keys("*")) <= {KEY.encode()}, "nothing but the list of gateways"


async def test_without_redis_episodes_go_on_and_their_loss_is_told(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    with RedisServer(tmp_path_factory.mktemp("another")) as redis:
        gateway = gateway_fleet.gateway(
            tmp_path, [server.url for server in fleet.servers], redis_url=redis.url, journal_timeout_s="0.3"
        )
        with gateway_fleet.running(gateway):
            async with SessionStream(gateway.url) as stream:
                (player,) = await players_on(fleet, fleet.servers[0], stream, 1)
                redis.stop(signal.SIGKILL)
                for _ in range(3):
                    await player.step("without a journal")
                redis.start()
                await asyncio.sleep(1.0)
                await player.step("with one again")
                fleet.servers[0].kill()
                with pytest.raises(SessionLost, match="no journal"):
                    await player.step("gone")
            assert '"journal.lost"' in gateway.log()
            assert '"journal.returned"' in gateway.log()


async def on(fleet: Fleet, server: ServiceProcess, client: SessionStream, env: str) -> Session:
    """A session on that very replica."""
    while True:
        session = await client.open(task(env))
        if fleet.location(session) is server:
            return session


async def answers(gateway: ServiceProcess) -> None:
    """Until the process serves, whatever it thinks of its replicas."""
    async with httpx.AsyncClient(trust_env=False) as http:
        deadline = time.monotonic() + gateway_fleet.START_TIMEOUT_S
        while True:
            try:
                if (await http.get(f"{gateway.url}/healthz")).is_success:
                    return
            except httpx.TransportError:
                assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def open_when_possible(client: SessionStream) -> Session:
    """A session, as soon as there is a replica."""
    deadline = time.monotonic() + gateway_fleet.START_TIMEOUT_S
    while True:
        try:
            return await client.open(task())
        except Unavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)


async def deaths(fleet: Fleet) -> int:
    """Shards that died under their front so far; a server is ready when it has logged them and started others."""
    for server in fleet.servers:
        if server.alive:
            await asyncio.to_thread(server.wait_ready)
    return sum(server.log().count("shard.died") for server in fleet.servers)


async def sessions_on(server: ServiceProcess) -> int:
    """Open sessions, once the count has settled."""
    async with httpx.AsyncClient(trust_env=False) as http:
        await asyncio.sleep(0.3)
        load = (await http.get(f"{server.url}/v1/load")).json()
    return sum(sum(owners.values()) for owners in load["sessions"].values())


def children(pid: int) -> list[int]:
    """Child processes."""
    return [child.pid for child in psutil.Process(pid).children()]
