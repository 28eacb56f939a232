"""Redis, gateways, env servers and reward of overlays/dev-cpu, from its own YAML, used from outside."""

import time
from collections.abc import Callable
from functools import partial

import httpx
import pytest
from gymfleet_client.errors import ProblemError
from gymfleet_client.rest import GatewayClient
from gymfleet_contracts.session import OpenSession, ServerLoad, Session
from redis import Redis
from redis.exceptions import AuthenticationError

from tests.deploy.k8s.cluster import Cluster, Pod
from tests.deploy.k8s_manifests import secrets

pytestmark = pytest.mark.timeout(600)  # containers on a machine that may have other work


def until(cluster: Cluster, pod: Pod, what: str, condition: Callable[[], bool], timeout_s: float = 150.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, (
            f"{pod.name}: {what}: not within {timeout_s:g} s\n{cluster.logs(pod)[-3000:]}"
        )
        time.sleep(0.2)


def pods(cluster: Cluster, name: str) -> list[Pod]:
    return [pod for pod in cluster.pods if pod.workload.name == name]


def all_up(gateway: Pod, replicas: int) -> bool:
    metrics = httpx.get(gateway.url() + "/metrics", trust_env=False).text
    return f'gymfleet_gateway_replicas{{state="up"}} {replicas:.1f}' in metrics.splitlines()


def client(gateway: Pod) -> GatewayClient:
    return GatewayClient(gateway.url(), api_key=secrets()["env-gateway"]["api-key"])


def test_every_pod_passes_its_probes(cluster: Cluster) -> None:
    for pod in cluster.pods:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            until(cluster, pod, kind, partial(pod.probe, kind))


def test_each_gateway_finds_every_env_server_by_the_name_of_its_service(cluster: Cluster) -> None:
    for gateway in pods(cluster, "env-gateway"):
        until(cluster, gateway, "finds three env servers", partial(all_up, gateway, 3))


async def test_callers_need_the_key_of_the_secret(cluster: Cluster) -> None:
    gateway, _ = pods(cluster, "env-gateway")

    async with GatewayClient(gateway.url(), api_key="another-key") as stranger:
        with pytest.raises(ProblemError) as refused:
            await stranger.environments()

    assert refused.value.problem.status == 401


def test_redis_needs_its_password_and_forgets_nothing(cluster: Cluster) -> None:
    (pod,) = pods(cluster, "redis")
    with Redis(host=pod.address) as stranger, pytest.raises(AuthenticationError):
        stranger.ping()

    with Redis(host=pod.address, password=secrets()["redis"]["password"]) as redis:
        settings = redis.config_get("appendonly", "maxmemory-policy", "maxmemory")

    assert settings == {"appendonly": "yes", "maxmemory-policy": "noeviction", "maxmemory": str(1536 * 2**20)}


@pytest.mark.parametrize("env", ["textcraft", "maze"])
async def test_an_episode_is_played_to_its_end(cluster: Cluster, env: str) -> None:
    gateway, _ = pods(cluster, "env-gateway")

    async with client(gateway) as player:
        session = await player.open(OpenSession(env=env, task_index=0))
        await play_on(player, session, first=0)


async def test_an_episode_goes_on_at_the_other_gateway_when_its_env_server_is_killed(cluster: Cluster) -> None:
    one, other = pods(cluster, "env-gateway")
    async with client(one) as player:
        session = await player.open(OpenSession(env="textcraft", task_index=1))
        move = await player.expert(session.session_id)
        await player.step(session.session_id, 0, move.action)
    (holder,) = (pod for pod in pods(cluster, "env-textcraft") if sessions_of(pod) == 1)

    cluster.kill(holder)

    async with client(other) as player:
        await play_on(player, session, first=1)


async def play_on(player: GatewayClient, session: Session, *, first: int) -> None:
    """As the expert does, from step `first` to the goal; then the session is closed."""
    for index in range(first, 60):
        move = await player.expert(session.session_id)
        result = await player.step(session.session_id, index, move.action)
        if result.terminated:
            break
    await player.close(session.session_id)

    assert result.terminated
    assert result.reward > 0


def sessions_of(pod: Pod) -> int:
    load = ServerLoad.model_validate_json(httpx.get(pod.url() + "/v1/load", trust_env=False).content)
    return sum(number for owners in load.sessions.values() for number in owners.values())
