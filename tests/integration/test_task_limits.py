"""Time limits of single tasks: longer than the server's own, or shorter, without a change for the others."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from gymfleet_client import SessionStream
from gymfleet_client.errors import SessionLimit, StepTimeout
from gymfleet_contracts.session import OpenSession

from tests.fixtures import gateway_fleet

CLASSES = tuple(f"tests.fixtures.declaring_environment:{name}" for name in ("Timed", "WaitingTimed"))
ENVIRONMENTS = ("timed", "waiting_timed")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    logs = tmp_path_factory.mktemp("fleet")
    server = gateway_fleet.env_server(logs, *CLASSES, step_timeout_s="1", expert_timeout_s="0.1")
    gateway = gateway_fleet.gateway(logs, [server.url], step_timeout_s="1.5")
    with gateway_fleet.running(server, gateway):
        yield gateway.url


async def slept(url: str, env: str, task_id: str, seconds: float, lease_s: float = 60) -> float:
    """Sleep in a step; the time that it took. Raises what the step raises."""
    async with SessionStream(url) as stream:
        session = await stream.open(OpenSession(env=env, task_id=task_id, lease_s=lease_s))
        began = time.monotonic()
        try:
            assert (await stream.step(session.session_id, 0, f"sleep {seconds}")).observation == "slept"
            assert (await stream.get(session.session_id)).index == 1, "the session goes on"
        finally:
            took_s = time.monotonic() - began
            print(f"{env} {task_id}: {took_s:.2f} s")  # noqa: T201 - shown when it fails
        return took_s


@pytest.mark.parametrize("env", ENVIRONMENTS)
async def test_a_slow_task_has_its_own_limit_and_the_others_keep_the_servers(url: str, env: str) -> None:
    assert await slept(url, env, "slow", 2.0) >= 2.0
    assert await slept(url, env, "slow", 1.5, lease_s=1.1) >= 1.5, "its lease does not run out during the step"
    with pytest.raises(StepTimeout, match="within 1 s"):
        await slept(url, env, "plain", 2.5)


@pytest.mark.parametrize("env", ENVIRONMENTS)
async def test_a_tasks_limit_ends_its_step_and_is_cut_to_the_environments(url: str, env: str) -> None:
    with pytest.raises(StepTimeout, match=r"within 0\.3 s"):
        await slept(url, env, "quick", 0.8)
    with pytest.raises(StepTimeout, match="within 3 s"):
        await slept(url, env, "slow", 6)


async def test_calls_in_threads_are_each_held_to_their_own_limit(url: str) -> None:
    ends = await asyncio.gather(
        slept(url, "waiting_timed", "slow", 2.2),
        slept(url, "waiting_timed", "plain", 2.0),
        slept(url, "waiting_timed", "quick", 0.7),
        slept(url, "waiting_timed", "plain", 0.4),
        return_exceptions=True,
    )

    assert [type(end) for end in ends] == [float, StepTimeout, StepTimeout, float]


@pytest.mark.parametrize("env", ENVIRONMENTS)
async def test_a_task_bounds_the_age_of_its_sessions(url: str, env: str) -> None:
    async with SessionStream(url) as stream:
        brief, plain = [await stream.open(OpenSession(env=env, task_id=name)) for name in ("brief", "plain")]
        assert brief.expires_in_s <= 1
        await asyncio.sleep(1.2)

        with pytest.raises(SessionLimit, match="episode_timeout_s = 1"):
            await stream.step(brief.session_id, 0, "add 1")
        assert (await stream.step(plain.session_id, 0, "add 1")).observation == "1"
