"""Sessions that take more than one slot, on an env server and behind a gateway that counts as it does."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from gymfleet_client import GatewayClient
from gymfleet_client.errors import EnvironmentFull
from gymfleet_contracts.session import OpenSession, Session

from tests.conformance.env_server import EnvServer
from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess

HEAVY, LIGHT = (f"tests.fixtures.declaring_environment:{name}" for name in ("Heavy", "Post"))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    logs = tmp_path_factory.mktemp("fleet")
    server = gateway_fleet.env_server(logs, HEAVY, LIGHT, max_sessions="4", shards="2")
    gateway = gateway_fleet.gateway(logs, [server.url], queue_timeout_s="3")
    with gateway_fleet.running(server, gateway):
        yield server, gateway


@pytest.fixture(params=["env server", "gateway"])
async def client(
    request: pytest.FixtureRequest, fleet: tuple[ServiceProcess, ServiceProcess]
) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(fleet[request.param == "gateway"].url) as client:
        yield client


async def opened(client: GatewayClient, env: str = "heavy", wait_s: float = 2) -> Session:
    return await client.open(OpenSession(env=env, task_index=0, wait_s=wait_s), timeout_s=20)


async def refused(client: GatewayClient, env: str = "heavy") -> bool:
    """Whether there is no room; a 429 of the gateway says it after a wait, the env server at once."""
    try:
        session = await client.open(OpenSession(env=env, task_index=0, wait_s=0.2), timeout_s=0.4)
    except Exception:  # noqa: BLE001 - a refusal or, between two 429, the end of the time
        return True
    await client.close(session.session_id)
    return False


async def test_a_server_of_four_slots_holds_two_sessions_of_two(client: GatewayClient) -> None:
    assert (await client.environment("heavy")).slots == 2
    first, second = await opened(client), await opened(client)

    assert await refused(client)
    assert await refused(client, "post")

    await client.close(first.session_id)
    light = [await opened(client, "post") for _ in range(2)]
    assert await refused(client, "post")
    assert await refused(client)
    for session in (second, *light):
        await client.close(session.session_id)


async def test_children_take_as_many_slots_as_their_parent(client: GatewayClient) -> None:
    parent = await opened(client)
    with pytest.raises(EnvironmentFull):
        await client.fork(parent.session_id, 2, timeout_s=4)
    (child,) = await client.fork(parent.session_id, 1, timeout_s=5)
    assert await refused(client, "post")
    for session in (parent, child):
        await client.close(session.session_id)


async def test_a_third_session_waits_for_both_slots(fleet: tuple[ServiceProcess, ServiceProcess]) -> None:
    async with GatewayClient(fleet[1].url) as client:
        heavy, *light = [await opened(client), await opened(client, "post"), await opened(client, "post")]
        third = asyncio.create_task(opened(client, wait_s=20))
        await client.close(light[0].session_id)
        await asyncio.sleep(0.5)
        assert not third.done(), "one slot is not enough"
        async with httpx.AsyncClient(trust_env=False) as http:
            metrics = (await http.get(f"{fleet[1].url}/metrics")).text
        await client.close(light[1].session_id)
        session = await third
        for one in (heavy, session):
            await client.close(one.session_id)

    assert 'gymfleet_gateway_free_slots{env="heavy"} 0.0' in metrics
    assert 'gymfleet_gateway_free_slots{env="post"} 1.0' in metrics


def test_a_server_that_could_hold_no_session_says_so_and_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="takes 2 slots; raise GYMFLEET_ENV_MAX_SESSIONS"):
        EnvServer(tmp_path, HEAVY, max_sessions=1).start()
