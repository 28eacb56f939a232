"""Every environment is played by its expert as an agent plays it: through the gateway, over the stream, to the end."""

import asyncio
import shutil
from collections.abc import Iterator

import pytest
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.session import EnvironmentSpec, OpenSession
from gymfleet_env_server.catalogue import ENVIRONMENTS, find_environment

from tests.fixtures import gateway_fleet

EPISODES = 4


def playable(env: str) -> bool:
    return all(shutil.which(program) for program in find_environment(env).programs())


SERVED = [env for env in ENVIRONMENTS if playable(env)]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One env server hosts all: what one engine does to its process must not harm the others."""
    logs = tmp_path_factory.mktemp("logs")
    server = gateway_fleet.env_server(logs, *SERVED, shards="2")
    front = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, front):
        yield front.url


async def play(stream: SessionStream, env: str, index: int) -> tuple[float, bool]:
    session = await stream.open(OpenSession(env=env, task_index=index))
    turn = 0
    while True:
        move = await stream.expert(session.session_id)
        result = await stream.step(session.session_id, turn, move.action)
        turn += 1
        if result.terminated or result.truncated:
            await stream.close(session.session_id)
            return result.score, result.action_valid


@pytest.mark.parametrize("env", SERVED)
async def test_the_expert_solves_its_tasks(gateway: str, env: str) -> None:
    async with SessionStream(gateway) as stream:
        played = await asyncio.gather(*(play(stream, env, index) for index in range(EPISODES)))

    assert played == [(1.0, True)] * EPISODES


async def test_all_at_once_disturb_each_other_in_nothing(gateway: str) -> None:
    async with SessionStream(gateway) as stream:
        played = await asyncio.gather(*(play(stream, env, 7) for env in SERVED for _ in range(2)))

    assert played == [(1.0, True)] * 2 * len(SERVED)


async def test_all_are_listed_with_tasks_splits_and_capabilities(gateway: str) -> None:
    async with GatewayClient(gateway) as client:
        listed: dict[str, EnvironmentSpec] = {spec.name: spec for spec in await client.environments()}

    assert set(listed) == set(SERVED)
    for spec in listed.values():
        assert set(spec.splits) == {"train", "validation", "test"}
        assert min(spec.splits.values()) > 0
        assert spec.capabilities.expert
        assert spec.capabilities.fork != "none"
        assert spec.licence
