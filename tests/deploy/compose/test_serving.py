"""Environments served from containers: played from outside by every way in, scaled, killed, stopped and started.

The tests are a story: each goes on with the stack that the one before left.
"""

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from typing import Final

import httpx
import pytest
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_client.errors import Unauthorized
from gymfleet_contracts.session import OpenSession, Session, StepResult

from tests.deploy.compose.stack import Stack, report, run, until
from tests.fixtures.agentgym_clients import TextCraftClient

COLD_START_S: Final = 60.0
IDLE_BYTES: Final = 10**9
LIGHT_IMAGE_BYTES: Final = 250 * 10**6
MATHS_BYTES: Final = 120 * 10**6
"""SymPy and numpy, by which the reward service compares mathematical answers and computes BLEU."""
OS_ROOT_BYTES: Final = 230 * 10**6  # what sessions of os have as their system, beside the server's own
RECOVERY_S: Final = 15.0
START_S: Final = 180.0  # for a start that is waited for and not judged, on a machine that has other work
MAX_STEPS: Final = 60


def key(stack: Stack) -> str:
    return stack.secret("gateway_api_key")


def served(stack: Stack) -> list[str]:
    """The environments that the profiles start."""
    return [profile for profile in stack.settings["COMPOSE_PROFILES"].split(",") if profile != "reward"]


def task(index: int, env: str = "textcraft") -> OpenSession:
    return OpenSession(env=env, task_index=index, seed=index)


async def finish(client: SessionStream | GatewayClient, session: Session, start: int = 0) -> StepResult:
    """Play on from step `start` as the environment's expert would, to the end."""
    for index in range(start, MAX_STEPS):
        # Redis was started anew where everything was: it vouches for a journal to those who know the session's index.
        move = await client.expert(session.session_id, index=index)
        result = await client.step(session.session_id, index, move.action)
        if result.terminated or result.truncated:
            return result
    raise AssertionError(f"no end within {MAX_STEPS} steps")


async def unfinished(client: SessionStream, count: int) -> dict[int, Session]:
    """Sessions after one step of the expert, none of which has ended; by the index of their task."""
    found: dict[int, Session] = {}
    for index in range(10 * count):
        session = await client.open(task(index))
        move = await client.expert(session.session_id)
        result = await client.step(session.session_id, 0, move.action)
        if result.terminated:
            await client.close(session.session_id)
        else:
            found[index] = session
        if len(found) == count:
            return found
    raise AssertionError("all tasks end after one step")


def replica(session: Session) -> str:
    """The env server that a session was opened on: its id says so."""
    return session.session_id.split(".")[1]


def test_light_images_are_small() -> None:
    listed = run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}", timeout_s=60).split()
    names = [name for name in listed if re.search(r"gymfleet/(env-[a-z]+|reward|rollout):", name)]
    inspected = json.loads(run("docker", "image", "inspect", *names, timeout_s=60))

    sizes = {name: image["Size"] for name, image in zip(names, inspected, strict=True)}

    report("images in MB: " + ", ".join(f"{name.split('/')[-1]} {size / 1e6:.0f}" for name, size in sizes.items()))
    assert len(sizes) >= 6
    allowed = {"env-os": OS_ROOT_BYTES, "reward": MATHS_BYTES}
    extra = {name: size for name in sizes for image, size in allowed.items() if f"gymfleet/{image}:" in name}
    assert max(size - extra.get(name, 0) for name, size in sizes.items()) < LIGHT_IMAGE_BYTES


async def test_cold_start_to_first_episode_within_a_minute(stack: Stack) -> None:
    began = time.monotonic()
    stack.compose("up", "--detach", "--no-build")
    (url,) = stack.wait_ready("env_gateway", timeout_s=START_S)
    ready_s = time.monotonic() - began
    async with SessionStream(url, api_key=key(stack)) as client:
        result = await finish(client, await client.open(task(0)))
    took_s = time.monotonic() - began

    report(f"cold start: gateway ready after {ready_s:.1f} s, first episode over after {took_s:.1f} s")
    assert result.score == 1.0
    assert took_s < COLD_START_S


def test_only_the_gateway_can_be_reached_and_only_from_this_machine(stack: Stack) -> None:
    published = stack.published()

    assert list(published) == ["env_gateway"]
    ((host, port),) = published["env_gateway"]
    assert (host, 28200 <= port <= 28209) == ("127.0.0.1", True)
    networks = stack.inspect(stack.containers("env_gateway")[0])["NetworkSettings"]["Networks"]
    addresses = [network["Gateway"] for network in networks.values() if network["Gateway"]]
    assert addresses, "this machine's own addresses in the stack's networks"
    for address in addresses:
        with socket.socket() as other:
            other.settimeout(2)
            assert other.connect_ex((address, port)) != 0, f"the port is open on {address}"


def test_containers_cannot_reach_the_world(stack: Stack) -> None:
    attempt = "import socket; socket.create_connection(('192.0.2.1' if {0} else 'redis', 6379), 2)"

    for service, reaches_redis in (("env_gateway", True), ("env-textcraft", False)):
        for outside in (True, False):
            expected = reaches_redis and not outside
            code = f"try:\n {attempt.format(outside)}\n print('reached')\nexcept OSError: print('not reached')"
            said = stack.compose("exec", "-T", service, "python3", "-c", code, timeout_s=60)
            assert said.strip() == ("reached" if expected else "not reached"), (service, outside)


def test_idle_memory_of_the_light_stack_is_under_a_gigabyte(stack: Stack) -> None:
    held = stack.memory_bytes()

    report("idle memory: " + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sorted(held.items())))
    report(f"together {sum(held.values()) / 1e6:.0f} MB")
    assert len(held) == 3 + len(served(stack)), "redis, gateway, reward and each environment"
    assert sum(held.values()) < IDLE_BYTES


async def test_every_environment_is_played_over_rest(stack: Stack) -> None:
    (url,) = stack.urls("env_gateway")
    async with GatewayClient(url, api_key=key(stack)) as client:
        specs = await client.environments()
        scores = {spec.name: (await finish(client, await client.open(task(1, spec.name)))).score for spec in specs}

    assert scores == dict.fromkeys(served(stack), pytest.approx(1.0, abs=0.2))


def test_an_unmodified_agentgym_client_plays(stack: Stack) -> None:
    (url,) = stack.urls("env_gateway")

    client = TextCraftClient(url.replace("http://", f"http://any:{key(stack)}@"))
    first = client.reset(0)
    observation, reward, done = client.step("inventory")

    assert "Goal: craft" in first
    assert "Inventory" in observation
    assert (reward, done) == (0, False)


async def test_a_wrong_key_is_refused(stack: Stack) -> None:
    (url,) = stack.urls("env_gateway")
    async with GatewayClient(url, api_key="0" * 64) as client:
        with pytest.raises(Unauthorized):
            await client.open(task(0))
    with pytest.raises(Unauthorized):
        await SessionStream(url, api_key="0" * 64).connect()


def test_without_a_key_nothing_is_served(stack: Stack) -> None:
    (url,) = stack.urls("env_gateway")

    assert httpx.get(f"{url}/v1/environments", trust_env=False).status_code == 401


async def test_scaled_to_two_replicas_each_both_are_used(stack: Stack) -> None:
    stack.compose(
        "up", "--detach", "--no-build", "--no-recreate", "--scale", "env-textcraft=2", "--scale", "env_gateway=2"
    )
    urls = stack.wait_ready("env_gateway", replicas=2, timeout_s=START_S)
    async with SessionStream(urls[0], api_key=key(stack)) as one, SessionStream(urls[1], api_key=key(stack)) as other:

        async def spread() -> set[str]:
            sessions = [await client.open(task(index)) for index in range(4) for client in (one, other)]
            for session in sessions:  # each gateway serves the other's sessions
                await other.close(session.session_id)
            return {replica(session) for session in sessions}

        used: set[str] = set()
        deadline = time.monotonic() + START_S
        while len(used) < 2:  # until both gateways have found the second replica
            assert time.monotonic() < deadline, f"only {used} used"
            used = await spread()


async def test_kill_9_of_an_env_server_and_its_episodes_go_on(stack: Stack) -> None:
    url = stack.urls("env_gateway")[0]
    victim = stack.containers("env-textcraft")[0]
    since = stack.inspect(victim)["State"]["StartedAt"]
    async with SessionStream(url, api_key=key(stack)) as client:
        sessions = await unfinished(client, 8)
        assert len({replica(session) for session in sessions.values()}) == 2, "some of them on the one that is killed"

        stack.kill(victim)
        began = time.monotonic()
        results = await asyncio.gather(*(finish(client, session, 1) for session in sessions.values()))
        took_s = time.monotonic() - began

    report(f"8 episodes were over {took_s:.1f} s after the kill of an env server")
    assert {result.score for result in results} == {1.0}
    assert took_s < RECOVERY_S
    until("the env server runs again", lambda: stack.restarted(victim, since), START_S)


async def test_kill_9_of_a_gateway_and_its_sessions_go_on_through_the_other(stack: Stack) -> None:
    victim, survivor = stack.containers("env_gateway")
    since = stack.inspect(victim)["State"]["StartedAt"]
    by_container = dict(zip((victim, survivor), stack.urls("env_gateway"), strict=True))
    async with (
        SessionStream(by_container[victim], api_key=key(stack)) as doomed,
        SessionStream(by_container[survivor], api_key=key(stack)) as other,
    ):
        sessions = await unfinished(doomed, 4)

        stack.kill(victim)
        began = time.monotonic()
        results = await asyncio.gather(*(finish(other, session, 1) for session in sessions.values()))
        took_s = time.monotonic() - began

    report(f"4 episodes were over {took_s:.1f} s after the kill of a gateway")
    assert {result.score for result in results} == {1.0}
    assert took_s < RECOVERY_S
    until("the gateway runs again", lambda: stack.restarted(victim, since), START_S)
    stack.wait_ready("env_gateway", replicas=2, timeout_s=START_S)


async def test_stopped_and_started_nothing_is_lost(stack: Stack) -> None:
    async with SessionStream(stack.urls("env_gateway")[0], api_key=key(stack)) as client:
        sessions = await unfinished(client, 4)
    journaled = int(stack.redis("dbsize"))

    began = time.monotonic()
    stack.compose("stop")
    stopped_s = time.monotonic() - began
    assert stack.containers() == []
    began = time.monotonic()
    stack.compose("start")
    url = stack.wait_ready("env_gateway", replicas=2, timeout_s=START_S)[0]
    started_s = time.monotonic() - began

    report(f"stopped in {stopped_s:.1f} s, ready again after {started_s:.1f} s")
    assert int(stack.redis("dbsize")) >= len(sessions)
    assert journaled >= len(sessions)
    async with SessionStream(url, api_key=key(stack)) as client:
        results = await asyncio.gather(*(finish(client, session, 1) for session in sessions.values()))
    assert {result.score for result in results} == {1.0}


def test_secrets_are_in_no_process_list_no_environment_and_no_log(stack: Stack) -> None:
    secrets = [stack.secret(name) for name in ("gateway_secret", "gateway_api_key", "rollout_api_key")]
    secrets.append(stack.secret("redis.conf").split()[1])
    documents: list[Callable[[], str]] = [lambda: stack.compose("logs", "--no-color"), lambda: stack.compose("top")]
    shown = [document() for document in documents]
    shown += [str(stack.inspect(container)["Config"]) for container in stack.containers()]

    assert not any(secret in text for secret in secrets for text in shown)
