"""MCP servers as environments of ours, over real processes."""

import sys
from pathlib import Path

import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_client.errors import SessionLost
from gymfleet_contracts.session import OpenSession
from gymfleet_envs.adapters.mcp import Finished, Goal, from_mcp
from gymfleet_envs.environment import EngineLost

from tests.fixtures import gateway_fleet
from tests.fixtures.paths import ROOT

FILE = """
import sys

from gymfleet_envs.adapters.mcp import Finished, Goal, from_mcp

GOALS = [Goal("two-apples", "Buy two apples.", facts={"basket": "apple, apple"})]


async def check(done: Finished) -> float:
    return float(await done.call("basket", {}) == done.goal.facts["basket"])


ENVIRONMENT = from_mcp([sys.executable, "-m", "tests.fixtures.mcp_shop"], "shop", GOALS, check)
"""
GOALS = [Goal("two-apples", "Buy two apples.", facts={"basket": "apple, apple"})]


async def check(done: Finished) -> float:
    return float(await done.call("basket", {}) == done.goal.facts["basket"])


async def returns_two(done: Finished) -> float:
    return 2.0


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


SHOP = from_mcp([sys.executable, "-m", "tests.fixtures.mcp_shop"], "shop", GOALS, check)


async def test_tools_are_shown_and_called_and_the_checker_decides() -> None:
    world = SHOP()
    first = await world.reset(GOALS[0], 0)
    assert first.startswith("Tools:\nadd: Put something into the basket. {")
    assert first.endswith("\n\nGoal: Buy two apples.")
    assert "apple, apple" not in first

    seen = [
        await world.step(action)
        for action in ('add {"thing": "apple"}', 'add {"thing": "apple", "number": 1}', "basket")
    ]

    assert [one.observation for one in seen] == ["1 apple added", "1 apple added", "apple, apple"]
    assert all(one.score == 0 and not one.terminated for one in seen)
    last = await world.step("finish done")
    assert (last.score, last.terminated) == (1.0, True)
    await world.close()


async def test_sessions_have_processes_of_their_own() -> None:
    one, other = SHOP(), SHOP()
    await one.reset(GOALS[0], 0)
    await other.reset(GOALS[0], 0)

    await one.step('add {"thing": "apple", "number": 2}')

    assert (await other.step("basket {}")).observation == "nothing"
    assert (await other.step("finish apple, apple")).score == 0.0, "the answer is not what is checked"
    await one.close()
    await other.close()


@pytest.mark.parametrize(
    "action",
    ["", "add", "add apple", "add [1]", 'add {"thing": 5}', "steal {}", "add " + "[" * 5000,
     'add {"thing": "\\ud800"}', 'add {"thing": ' + "[" * 300 + "]" * 300 + "}", 'add {"thing": NaN}'],
)  # fmt: skip
async def test_what_cannot_be_called_is_answered(action: str) -> None:
    world = SHOP()
    await world.reset(GOALS[0], 0)

    outcome = await world.step(action)

    assert outcome.observation
    assert (outcome.score, outcome.terminated) == (0.0, False)
    assert (await world.step("basket")).observation == "nothing"
    await world.close()


async def test_a_tools_own_error_is_its_answer() -> None:
    world = SHOP()
    await world.reset(GOALS[0], 0)

    outcome = await world.step('add {"thing": "poison"}')

    assert outcome.action_valid
    assert outcome.observation == "Error: Error executing tool add", "the server tells no more"
    await world.close()


async def test_a_server_that_dies_loses_the_session() -> None:
    world = SHOP()
    await world.reset(GOALS[0], 0)

    with pytest.raises(EngineLost):
        await world.step('add {"thing": "dynamite"}')
    with pytest.raises(EngineLost):
        await world.step("finish")

    await world.close()


async def test_a_server_that_is_not_there_is_named() -> None:
    world = from_mcp(["/no/such/program"], "shop", GOALS, check)()

    with pytest.raises(EngineLost, match="/no/such/program"):
        await world.reset(GOALS[0], 0)

    await world.close()


async def test_a_checker_that_gives_no_score_fails_the_episode() -> None:
    world = from_mcp([sys.executable, "-m", "tests.fixtures.mcp_shop"], "shop", GOALS, returns_two)()
    await world.reset(GOALS[0], 0)

    with pytest.raises(ValueError, match=r"check returned 2.0, which is no score in \[0, 1\]"):
        await world.step("finish")

    await world.close()


def test_it_is_served_and_a_death_is_told(tmp_path: Path) -> None:
    file = tmp_path / "shop.py"
    file.write_text(FILE)
    server = gateway_fleet.env_server(tmp_path, str(file))
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway), SyncGatewayClient(gateway.url) as client:
        session = client.open(OpenSession(env="shop", split="test", task_index=0))
        client.step(session.session_id, 0, 'add {"thing": "apple", "number": 2}')
        assert client.step(session.session_id, 1, "finish").score == 1.0

        other = client.open(OpenSession(env="shop", split="test", task_index=0))
        with pytest.raises(SessionLost):
            client.step(other.session_id, 0, 'add {"thing": "dynamite"}')
