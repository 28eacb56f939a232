"""Every environment whose image is here, played from its container: the images hold what their worlds need.

`scripts/images.sh light` makes all of them; scripts/test-compose.sh makes four.
"""

import re
from dataclasses import replace
from typing import Final

import httpx
import pytest
from gymfleet_client import SessionStream
from gymfleet_contracts.session import OpenSession
from gymfleet_env_server.catalogue import ENVIRONMENTS
from gymfleet_envs.families import family_of

from tests.deploy.compose.stack import Stack, report, run, until
from tests.fixtures.families import FAMILIES

START_S: Final = 180.0
MAX_STEPS: Final = 300


def images() -> set[str]:
    """Families of environments that an image was made of."""
    listed = run("docker", "image", "ls", "--format", "{{.Repository}}", timeout_s=60)
    return set(re.findall(r"gymfleet/env-([a-z]+)$", listed, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def worlds(stack: Stack) -> Stack:
    """The same project with all env servers that can be started, and a gateway; none of the services of a run."""
    here = images() & set(FAMILIES)
    if stack.program[0] == "docker-compose":
        here.discard("os")  # version 1 does not know `systempaths`
    worlds = replace(stack, settings={**stack.settings, "COMPOSE_PROFILES": ",".join(sorted(here))})
    worlds.take_down()
    worlds.compose("up", "--detach", "--no-build", timeout_s=400)
    (url,) = worlds.wait_ready("env_gateway", timeout_s=START_S)
    headers = {"Authorization": f"Bearer {worlds.secret('gateway_api_key')}"}

    def all_served() -> bool:
        served = httpx.get(f"{url}/v1/environments", headers=headers, trust_env=False).raise_for_status().json()
        return {family_of(spec["name"]) for spec in served} >= here

    until("all environments are served", all_served, START_S)
    return worlds


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_an_expert_solves_a_task(worlds: Stack, name: str) -> None:
    if family_of(name) not in worlds.settings["COMPOSE_PROFILES"].split(","):
        pytest.skip(f"env-{family_of(name)}: no image of it here, or a compose program that cannot start it")
    (url,) = worlds.urls("env_gateway")
    async with SessionStream(url, api_key=worlds.secret("gateway_api_key")) as client:
        session = await client.open(OpenSession(env=name, split="train", task_index=1, seed=1))
        for index in range(MAX_STEPS):
            move = await client.expert(session.session_id)
            result = await client.step(session.session_id, index, move.action)
            if result.terminated or result.truncated:
                break
        await client.close(session.session_id)

    report(f"{name}: score {result.score:g} after {index + 1} steps")
    assert result.terminated
    assert result.score == 1.0
