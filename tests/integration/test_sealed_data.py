"""What an environment tells the reward service alone, from the env server to the reward."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_contracts.reward import ScoreBatch, ScoredBatch, ScoreRequest
from gymfleet_contracts.session import OpenSession, Session
from gymfleet_contracts.trajectory import ScoredTrajectory, Trajectory
from gymfleet_kit.sealing import Opener, new_private_key

from tests.fixtures import gateway_fleet
from tests.fixtures.paths import ROOT
from tests.fixtures.rewards import make_spec
from tests.fixtures.service_process import ServiceProcess
from tests.fixtures.trajectories import make_trajectory, make_turn
from tests.integration.test_component_plugins import of_the_guide

PRIVATE_KEY = new_private_key()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of the guide."""
    page = (ROOT / "docs/adding-an-environment.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Sums" in block]
    assert len(block.splitlines()) < 60
    path = tmp_path_factory.mktemp("environment") / "sums.py"
    path.write_text(block)
    return str(path)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("component") / "answer.py"
    path.write_text(of_the_guide("The answer at"))
    return str(path)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, environment: str) -> Iterator[gateway_fleet.ServiceProcess]:
    logs = tmp_path_factory.mktemp("fleet")
    server = gateway_fleet.env_server(logs, environment, seal_key=Opener(PRIVATE_KEY).public_key)
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield gateway


def reward_service(redis_url: str, answer: str, log: Path, **settings: str) -> ServiceProcess:
    given = {"redis_url": redis_url, "plugins": json.dumps([answer]), **settings}
    return ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", given, log)


@pytest.fixture(scope="module")
def rewards(redis_url: str, answer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with reward_service(redis_url, answer, tmp_path_factory.mktemp("log") / "log", seal_key=PRIVATE_KEY) as service:
        yield service


def episode(session: Session, reply: str) -> Trajectory:
    return make_trajectory(task=session.task, sealed=session.sealed, turns=(make_turn(2, text=reply),))


def scored(service: ServiceProcess, answer: str, trajectory: Trajectory) -> ScoredTrajectory:
    page = (ROOT / "docs/adding-a-component.md").read_text(encoding="utf-8")
    (block,) = [found for found in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[reward.private" in found]
    tables = tomllib.loads(block)["reward"]
    assert tables["private_answer"].pop("use") == "./answer.py"
    spec = make_spec(**{**tables, "private_answer": {**tables["private_answer"], "use": answer}})
    body = ScoreBatch(items=(ScoreRequest(trajectory=trajectory, reward=spec),)).model_dump_json()
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{service.url}/v1/scores", content=body, headers=headers, timeout=30)
    assert response.status_code == 200, response.text
    (item,) = ScoredBatch.model_validate_json(response.content).items
    return item


def opened(gateway: gateway_fleet.ServiceProcess, task_index: int = 0) -> tuple[Session, int]:
    """A session, and what is right in it."""
    with SyncGatewayClient(gateway.url) as client:
        session = client.open(OpenSession(env="sums", task_index=task_index))
    first, second = re.findall(r"\d+", session.observation)
    return session, int(first) + int(second)


def test_the_reward_knows_what_no_caller_sees(
    gateway: gateway_fleet.ServiceProcess, rewards: ServiceProcess, answer: str
) -> None:
    session, right = opened(gateway)
    told = session.model_dump_json()

    good = scored(rewards, answer, episode(session, f"It is {right}"))
    bad = scored(rewards, answer, episode(session, f"It is {right + 1}"))

    assert '"answer"' not in told
    assert session.sealed is not None
    assert good.reward is not None
    assert bad.reward is not None
    assert (good.reward.total, bad.reward.total) == (1.0, 0.0)
    assert str(right) not in good.trajectory.model_dump_json().replace(f"It is {right}", "").replace(
        str(session.sealed), ""
    )


def test_it_stays_with_the_session(gateway: gateway_fleet.ServiceProcess) -> None:
    session, _ = opened(gateway)
    with SyncGatewayClient(gateway.url) as client:
        (child,) = client.fork(session.session_id)
        assert client.get(session.session_id).sealed == session.sealed == child.sealed
        result = client.step(session.session_id, 0, "7")
        assert result.sealed is None
        assert client.get(session.session_id).sealed is None


def test_another_tasks_answer_makes_no_reward(
    gateway: gateway_fleet.ServiceProcess, rewards: ServiceProcess, answer: str
) -> None:
    session, right = opened(gateway)
    other, _ = opened(gateway, 1)

    swapped = scored(rewards, answer, episode(session, str(right)).model_copy(update={"sealed": other.sealed}))
    late = make_turn(2, text=str(right), sealed=session.sealed)
    moved = scored(rewards, answer, make_trajectory(task=session.task, sealed=session.sealed, turns=(late,)))
    missing = scored(rewards, answer, episode(session, str(right)).model_copy(update={"sealed": None}))

    assert (swapped.reward, moved.reward, missing.reward) == (None, None, None)
    assert "it is of another task than the episode's" in str(swapped.reward_error)
    assert "not in order" in str(moved.reward_error)
    assert "the episode has no private.answer" in str(missing.reward_error)


def test_without_keys_nothing_goes_out_and_nothing_is_opened(
    gateway: gateway_fleet.ServiceProcess, environment: str, redis_url: str, answer: str, tmp_path: Path
) -> None:
    session, right = opened(gateway)
    server = gateway_fleet.env_server(tmp_path, environment)
    with gateway_fleet.running(server), reward_service(redis_url, answer, tmp_path / "log") as service:
        with SyncGatewayClient(server.url) as client:
            assert client.open(OpenSession(env="sums", task_index=0)).sealed is None
        item = scored(service, answer, episode(session, str(right)))

    assert item.reward is None
    assert "give the service GYMFLEET_REWARD_SEAL_KEY" in str(item.reward_error)


@pytest.mark.parametrize("command", [["gymfleet-reward"], ["gymfleet-env-server", "maze"]])
def test_a_key_that_is_none_is_told_before_anything_starts(command: list[str]) -> None:
    name = "GYMFLEET_REWARD_SEAL_KEY" if command == ["gymfleet-reward"] else "GYMFLEET_ENV_SEAL_KEY"
    script = [str(Path(sys.executable).with_name(command[0])), *command[1:]]

    ended = subprocess.run(
        script, check=False, env={**os.environ, name: "nonsense"}, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 2
    assert f"{name}: " in ended.stderr
    assert "32 bytes in base64" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
