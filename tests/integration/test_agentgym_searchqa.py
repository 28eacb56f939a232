"""AgentGym's SearchQA client, unmodified, plays through the gateway."""

from collections.abc import Iterator

import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_conformance import Protocol, Verdict, checks_of, examine
from gymfleet_conformance.detect import find_protocol, find_targets
from gymfleet_conformance.server_under_test import ServerUnderTest
from gymfleet_contracts.session import OpenSession

from tests.fixtures import gateway_fleet
from tests.fixtures.agentgym_clients import SearchQAClient, get, post
from tests.fixtures.gateway_fleet import ServiceProcess

PROMPT = "You must reason inside <think>...</think> first."


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    logs = tmp_path_factory.mktemp("searchqa")
    server = gateway_fleet.env_server(logs, "searchqa", expert_splits='["train", "validation", "test"]')
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield gateway


def test_an_episode_is_won_and_the_next_one_reuses_the_id(gateway: ServiceProcess) -> None:
    client = SearchQAClient(gateway.url)
    with SyncGatewayClient(gateway.url) as native:
        for number in (3, 1):
            twin = native.open(OpenSession(env="searchqa", task_index=number))
            assert client.reset(number) == client.observe() == twin.observation
            assert twin.observation.startswith(PROMPT)
            done, steps = False, 0
            while not done:
                action = native.expert(twin.session_id).action
                expected = native.step(twin.session_id, steps, action)
                observation, reward, done = client.step(f"<think>I think.</think>\n{action}")
                assert (observation, reward, done) == (expected.observation, expected.reward, expected.terminated)
                assert client.observe() == twin.observation, "the question, at any time"
                steps += 1
            assert (reward, steps) == (1.0, 2)
            native.close(twin.session_id)


def test_answers_have_exactly_agentgyms_fields(gateway: ServiceProcess) -> None:
    client = SearchQAClient(gateway.url)

    assert client.observe().startswith(PROMPT), "an id begins with the question that /create numbers"
    step = client.post("step", {"env_idx": client.id, "action": "nonsense"})

    assert set(step) == {"observation", "reward", "done", "info"}
    assert (step["reward"], step["done"], step["info"]) == (0.0, False, None)
    assert step["observation"].startswith("Your previous action is invalid. If you want to search, ")
    assert get(f"{client.base}").json() == "ok"
    assert isinstance(client.id, int)
    assert post(f"{client.base}/create", {}).status_code == 422
    assert [client.close(), client.close()] == [True, False]
    assert post(f"{client.base}/step", {"env_idx": client.id, "action": "x"}).status_code == 500


def test_a_wrong_answer_ends_a_generated_question(gateway: ServiceProcess) -> None:
    client = SearchQAClient(gateway.url)
    client.reset(0)

    assert client.step("<answer>Beijing</answer>") == ("Sorry, your answer is incorrect.", 0.0, True)


async def test_the_conformance_kit_finds_no_fault(gateway: ServiceProcess) -> None:
    async with ServerUnderTest.at(f"{gateway.url}/agentgym/searchqa") as site:
        assert await find_protocol(site) is Protocol.AGENTGYM
        [(name, target)] = await find_targets(site, Protocol.AGENTGYM, [])
        section = await examine(name, checks_of(Protocol.AGENTGYM), target)

    assert {one.id: one.seen for one in section.results if one.verdict is Verdict.FAILS} == {}
    assert section.count(Verdict.HOLDS) == 24
