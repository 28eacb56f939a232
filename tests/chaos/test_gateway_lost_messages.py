"""A step is executed exactly once, whatever the wire loses, between client and gateway and behind it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.session import OpenSession

from tests.fixtures import gateway_fleet, tally_environment
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.wire_cutter import WireCutter

TALLY = str(Path(tally_environment.__file__))
NUM_STEPS = 40
NUM_SESSIONS = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    server = gateway_fleet.env_server(tmp_path_factory.mktemp("server"), TALLY)
    with gateway_fleet.running(server):
        yield server


@pytest.fixture(scope="module")
def gateway(server: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    gateway = gateway_fleet.gateway(tmp_path_factory.mktemp("gateway"), [server.url])
    with gateway_fleet.running(gateway):
        yield gateway


async def open_sessions(url: str) -> list[str]:
    async with SessionStream(url) as sure:
        sessions = [await sure.open(OpenSession(env="tally", task_index=i)) for i in range(NUM_SESSIONS)]
    return [session.session_id for session in sessions]


async def counts(client: SessionStream | GatewayClient, session_ids: list[str]) -> set[str]:
    """Play every session; the last observations, which count the steps that were executed."""

    async def play(session_id: str) -> str:
        for index in range(NUM_STEPS):
            result = await client.step(session_id, index, "count")
            assert result.index == index
        return result.observation

    return set(await asyncio.gather(*(play(session_id) for session_id in session_ids)))


@pytest.mark.parametrize("lost", ["requests_every", "replies_every"])
async def test_between_client_and_gateway_on_the_stream(gateway: ServiceProcess, lost: str) -> None:
    session_ids = await open_sessions(gateway.url)
    async with WireCutter(gateway.url, **{lost: 9}) as wire, SessionStream(wire.url) as stream:
        assert await counts(stream, session_ids) == {str(NUM_STEPS)}
    assert wire.cuts > 3


@pytest.mark.parametrize("lost", ["requests_every", "replies_every"])
async def test_between_client_and_gateway_over_rest(gateway: ServiceProcess, lost: str) -> None:
    session_ids = await open_sessions(gateway.url)
    async with WireCutter(gateway.url, **{lost: 9}) as wire, GatewayClient(wire.url) as client:
        assert await counts(client, session_ids) == {str(NUM_STEPS)}
    assert wire.cuts > 3


async def test_behind_the_gateway(server: ServiceProcess, tmp_path: Path) -> None:
    async with WireCutter(server.url, replies_every=23) as wire:
        gateway = gateway_fleet.gateway(tmp_path, [wire.url], probe_interval_s="5")
        gateway.start()
        try:
            await asyncio.to_thread(gateway.wait_ready)
            session_ids = await open_sessions(gateway.url)
            async with SessionStream(gateway.url) as stream:
                assert await counts(stream, session_ids) == {str(NUM_STEPS)}
        finally:
            await asyncio.to_thread(gateway.stop)
    assert wire.cuts > 3


async def test_an_env_server_that_takes_connections_and_says_nothing_is_waited_for(
    server: ServiceProcess, tmp_path: Path
) -> None:
    """As one does that was killed and is being started again, on a busy machine."""
    async with WireCutter(server.url) as wire:
        gateway = gateway_fleet.gateway(tmp_path, [wire.url])
        gateway.start()
        try:
            await asyncio.to_thread(gateway.wait_ready)
            session_ids = await open_sessions(gateway.url)
            async with SessionStream(gateway.url) as stream:
                wire.hold()
                steps = [asyncio.create_task(stream.step(session_id, 0, "count")) for session_id in session_ids]
                done, _ = await asyncio.wait(steps, timeout=4)
                assert not done, "it is neither dead nor there"
                wire.release()
                assert {(await step).observation for step in steps} == {"1"}
        finally:
            await asyncio.to_thread(gateway.stop)


async def test_closing_twice_because_the_answer_was_lost_is_no_error(gateway: ServiceProcess) -> None:
    session_ids = await open_sessions(gateway.url)
    # The third chunk of replies is lost: the first two are the handshake's and one answer.
    async with WireCutter(gateway.url, replies_every=3) as wire, SessionStream(wire.url) as stream:
        for session_id in session_ids:
            await stream.close(session_id)
    assert wire.cuts > 0
