"""OpenEnv servers as environments of ours: our own front stands for theirs, and one that fails in every way."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_contracts.session import OpenSession
from gymfleet_envs.adapters.openenv import from_openenv, plainest
from gymfleet_envs.environment import EngineLost
from websockets.asyncio.server import ServerConnection, serve

from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess

FILE = """
from gymfleet_envs.adapters.openenv import from_openenv

ENVIRONMENT = from_openenv(
    "{url}", "there", solved_at=1.0, test=range(8), reset_with={{"split": "train", "level": "depth_1"}}
)
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    logs = tmp_path_factory.mktemp("theirs")
    server = gateway_fleet.env_server(logs, "textcraft")
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield gateway


def test_an_expert_solves_there_what_it_solves_here(theirs: ServiceProcess, tmp_path: Path) -> None:
    file = tmp_path / "there.py"
    file.write_text(FILE.format(url=f"{theirs.url}/openenv/textcraft"))
    server = gateway_fleet.env_server(tmp_path, str(file))
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with (
        gateway_fleet.running(server, gateway),
        SyncGatewayClient(theirs.url) as native,
        SyncGatewayClient(gateway.url) as ours,
    ):
        twin = native.open(OpenSession(env="textcraft", level="depth_1", task_index=3))
        played = ours.open(OpenSession(env="there", split="test", task_id="3"))
        assert played.observation == twin.observation
        outcome: Any = None
        for index in range(10):
            move = native.expert(twin.session_id)
            expected = native.step(twin.session_id, index, move.action)
            outcome = ours.step(played.session_id, index, move.action)

            assert (outcome.observation, outcome.reward) == (expected.observation, expected.reward)
            if expected.terminated:
                break

        assert (outcome.terminated, outcome.score) == (True, 1.0)


class Broken:
    """Answers `reset`, and each step as its message says."""

    def __init__(self) -> None:
        self.steps = 0

    async def __call__(self, socket: ServerConnection) -> None:
        async for text in socket:
            frame = json.loads(text)
            if frame["type"] == "reset":
                await socket.send(observed({"text": "begun"}))
                continue
            self.steps += 1
            if (message := frame["data"]["message"]) == "hang up":
                await socket.close()
                return
            if message == "sleep":
                await asyncio.sleep(2)
            await socket.send(ANSWERS[message])


def observed(observation: Any, *, reward: float | None = 0.0, done: bool = False) -> str:
    return json.dumps({"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}})


def error(code: str, message: str) -> str:
    return json.dumps({"type": "error", "data": {"code": code, "message": message}})


ANSWERS = {
    "sleep": observed({"text": "too late"}),
    "no JSON": "<html>",
    "depth": "[" * 100_000,
    "a number": "3",
    "bad words": error("VALIDATION_ERROR", "message: too rude"),
    "crash": error("EXECUTION_ERROR", "ZeroDivisionError"),
    "infinite": observed({"text": "x"}, reward=float("inf")),
    "no text": observed(None),
    "half": observed({"text": "x"}, reward=0.5),
    "none": observed({"text": "x"}, reward=None),
}


@pytest.fixture
def broken() -> Broken:
    return Broken()


@pytest.fixture
async def url(broken: Broken) -> AsyncIterator[str]:
    async with serve(broken, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def world_at(url: str) -> Any:
    return from_openenv(url, "broken", solved_at=1.0, test=range(1), timeout_s=0.5)()


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("hang up", ", step: "),
        ("sleep", "did not answer step within 0.5 s"),
        ("no JSON", ", step: Expecting value"),
        ("depth", ", step: maximum recursion depth exceeded"),
        ("a number", "answered step with 3"),
        ("crash", "step: EXECUTION_ERROR: ZeroDivisionError"),
        ("infinite", "answered reward inf and done False"),
        ("no text", "answered observation None"),
    ],
)
async def test_a_step_that_fails_is_lost_and_never_sent_again(url: str, broken: Broken, action: str, told: str) -> None:
    world = world_at(url)
    assert await world.reset(0, 0) == "begun"

    with pytest.raises(EngineLost) as lost:
        await world.step(action)

    assert told in str(lost.value)
    assert broken.steps == 1
    await world.close()


async def test_after_a_late_answer_no_other_action_gets_it(url: str) -> None:
    world = world_at(url)
    await world.reset(0, 0)
    with pytest.raises(EngineLost):
        await world.step("sleep")

    with pytest.raises(EngineLost):
        await world.step("half")

    await world.close()


async def test_an_action_that_is_not_understood_is_answered(url: str) -> None:
    world = world_at(url)
    await world.reset(0, 0)

    outcome = await world.step("bad words")

    assert (outcome.observation, outcome.action_valid) == ("message: too rude", False)
    assert [(await world.step(action)).score for action in ("half", "none", "half")] == [0.5, 0.5, 1.0]
    await world.close()


async def test_a_server_that_is_not_there_is_named() -> None:
    world = from_openenv("http://127.0.0.1:1", "nobody", solved_at=1.0, test=range(1))()

    with pytest.raises(EngineLost, match=r"ws://127\.0\.0\.1:1/ws"):
        await world.reset(0, 0)


async def test_an_action_that_cannot_be_spelled_is_not_sent(url: str, broken: Broken) -> None:
    world = from_openenv(url, "broken", solved_at=1.0, test=range(1), act=lambda action: None)()
    await world.reset(0, 0)

    assert not (await world.step("half")).action_valid
    assert broken.steps == 0
    await world.close()


def test_the_only_text_is_shown_and_else_all_of_it() -> None:
    assert plainest({"text": "ready", "metadata": {"n": 1}}) == "ready"
    assert plainest({"text": "ready", "n": 0}) == '{"text": "ready", "n": 0}'
    assert plainest({"n": 0}) == '{"n": 0}'
