"""A replica dies: its sessions are reported lost, never replaced, and everyone else plays on."""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_client.errors import SessionLost, Unavailable
from gymfleet_contracts.session import OpenSession
from gymfleet_env_gateway.session_ids import SessionIds, replica_key

from tests.fixtures import gateway_fleet, tally_environment
from tests.fixtures.gateway_fleet import SECRET, ServiceProcess

TALLY = str(Path(tally_environment.__file__))
COUNTER = OpenSession(env="tally", task_index=0)
DETECTION_S = 2.0


@dataclass(frozen=True)
class Fleet:
    """Two replicas of one environment, the first of which is to die."""

    victim: ServiceProcess
    survivor: ServiceProcess
    gateway: ServiceProcess

    def replica_of(self, session_id: str) -> ServiceProcess:
        key = SessionIds(SECRET).read(session_id, "local").replica
        return next(server for server in (self.victim, self.survivor) if replica_key(server.url) == key)


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    logs = tmp_path_factory.mktemp("fleet")
    victim, survivor = gateway_fleet.env_server(logs, TALLY), gateway_fleet.env_server(logs, TALLY)
    gateway = gateway_fleet.gateway(logs, [victim.url, survivor.url])
    with gateway_fleet.running(victim, survivor, gateway):
        yield Fleet(victim, survivor, gateway)


@pytest.fixture
def fleet(shared_fleet: Fleet) -> Fleet:
    """The fleet with both replicas up, whatever the test before did to them."""
    dead = [server for server in (shared_fleet.victim, shared_fleet.survivor) if not server.alive]
    for server in dead:
        server.start()
    deadline = time.monotonic() + gateway_fleet.START_TIMEOUT_S
    while 'state="up"} 2.0' not in httpx.get(f"{shared_fleet.gateway.url}/metrics", trust_env=False).text:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return shared_fleet


async def open_on_each(fleet: Fleet, stream: SessionStream) -> tuple[str, str]:
    """A session on the victim and one on the survivor: opens spread over the replicas."""
    by_replica: dict[ServiceProcess, str] = {}
    while len(by_replica) < 2:
        session_id = (await stream.open(COUNTER)).session_id
        by_replica[fleet.replica_of(session_id)] = session_id
    return by_replica[fleet.victim], by_replica[fleet.survivor]


async def test_kill_9_loses_the_replicas_sessions_and_no_other(fleet: Fleet) -> None:
    async with SessionStream(fleet.gateway.url) as stream, GatewayClient(fleet.gateway.url) as rest:
        doomed, safe = await open_on_each(fleet, stream)
        await stream.step(doomed, 0, "a")
        await stream.step(safe, 0, "a")
        in_flight = asyncio.create_task(stream.step(doomed, 1, "sleep 20000"))
        await asyncio.sleep(0.2)

        fleet.victim.kill()
        killed_at = time.monotonic()

        with pytest.raises(SessionLost):
            await in_flight
        with pytest.raises(SessionLost):
            await stream.step(doomed, 1, "b")
        assert time.monotonic() - killed_at < DETECTION_S
        with pytest.raises(SessionLost) as over_rest:
            await rest.get(doomed)
        assert over_rest.value.problem.status == 410
        assert (await stream.step(safe, 1, "b")).observation == "2"
        replicas = {fleet.replica_of((await stream.open(COUNTER)).session_id) for _ in range(4)}
        assert replicas == {fleet.survivor}, "new sessions go elsewhere"


async def test_a_replica_that_comes_back_does_not_bring_its_sessions_back(fleet: Fleet) -> None:
    async with SessionStream(fleet.gateway.url) as stream:
        doomed, _ = await open_on_each(fleet, stream)
        await stream.step(doomed, 0, "a")

        fleet.victim.kill()
        fleet.victim.start()
        await asyncio.to_thread(fleet.victim.wait_ready)

        with pytest.raises(SessionLost):
            await stream.step(doomed, 1, "b")

        async def until_it_serves_again() -> None:
            replicas: list[ServiceProcess] = []
            while fleet.victim not in replicas:
                replicas.append(fleet.replica_of((await stream.open(COUNTER)).session_id))
                await asyncio.sleep(0.1)

        await asyncio.wait_for(until_it_serves_again(), 20)
        with pytest.raises(SessionLost):
            await stream.get(doomed)


async def test_without_any_replica_the_environment_is_unavailable_until_one_returns(fleet: Fleet) -> None:
    async with SessionStream(fleet.gateway.url) as stream, httpx.AsyncClient(trust_env=False) as http:
        fleet.victim.kill()
        fleet.survivor.kill()

        with pytest.raises(Unavailable):
            await stream.open(COUNTER)

        async def unready() -> httpx.Response:  # the probe of a replica whose connection broke may be under way
            while True:
                answer = await http.get(f"{fleet.gateway.url}/readyz")
                if answer.is_error:
                    return answer
                await asyncio.sleep(0.05)

        ready = await asyncio.wait_for(unready(), DETECTION_S)
        assert (ready.status_code, ready.json()["type"]) == (503, "/problems/unavailable")
        assert (await http.get(f"{fleet.gateway.url}/healthz")).is_success

        fleet.survivor.start()
        await asyncio.to_thread(fleet.gateway.wait_ready)
        assert (await stream.open(COUNTER)).observation == "0"


async def test_a_hung_replica_gets_no_new_sessions_and_keeps_its_own(fleet: Fleet) -> None:
    async with SessionStream(fleet.gateway.url) as stream:
        held, _ = await open_on_each(fleet, stream)
        fleet.victim.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(DETECTION_S)
            replicas = {fleet.replica_of((await stream.open(COUNTER, timeout_s=2)).session_id) for _ in range(4)}
            waiting = asyncio.create_task(stream.step(held, 0, "a"))
            await asyncio.sleep(0.1)
        finally:
            fleet.victim.signal(signal.SIGCONT)

        assert replicas == {fleet.survivor}
        assert (await waiting).observation == "1", "silence is no proof of death"
