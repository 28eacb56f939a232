"""AgentGym's clients, unmodified, play through the gateway: alfworld, sciworld, sqlgym and webshop."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_conformance import Protocol, Verdict, checks_of, examine
from gymfleet_conformance.detect import find_protocol, find_targets
from gymfleet_conformance.server_under_test import ServerUnderTest
from gymfleet_contracts.session import OpenSession, Session
from gymfleet_envs.sciworld.tasks import agentgym_games

from tests.fixtures import gateway_fleet
from tests.fixtures.agentgym_clients import (
    ATTEMPTS,
    CLIENTS,
    AlfWorldClient,
    IndexedClient,
    SciWorldClient,
    SqlGymClient,
    WebShopClient,
    get,
    post,
)
from tests.fixtures.gateway_fleet import ServiceProcess

WORLDS = ("alfworld", "sciworld", "sql", "webshop")
INDEXED = ("sql", "webshop")
STEP = {"observation", "reward", "done"}
STATE = {"state", "reward", "done", "info"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    logs = tmp_path_factory.mktemp("worlds")
    server = gateway_fleet.env_server(logs, *WORLDS, expert_splits='["train", "validation", "test"]')
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield gateway


@pytest.fixture(scope="module")
def native(gateway: ServiceProcess) -> Iterator[SyncGatewayClient]:
    with SyncGatewayClient(gateway.url) as client:
        yield client


def twin_of(native: SyncGatewayClient, env: str, number: int) -> Session:
    """A session of the task that AgentGym's number must mean; its expert tells how to play."""
    generated = native.environment(env).task_source == "generated"
    chosen: dict[str, Any] = {"task_index": number} if generated else {"task_id": str(number)}
    return native.open(OpenSession(env=env, **chosen))


def shown(env: str, observation: str) -> str:
    """AgentGym's server takes ALFWorld's title and the numbers of its places away."""
    if env != "alfworld":
        return observation
    body = observation.removeprefix("-= Welcome to TextWorld, ALFRED! =-\n\n").replace("\n\n", "\n")
    return body.partition(". ")[2] if body.startswith("You arrive at loc ") else body


@pytest.mark.parametrize("env", WORLDS)
def test_an_episode_is_won_and_the_next_one_reuses_the_id(
    gateway: ServiceProcess, native: SyncGatewayClient, env: str
) -> None:
    agentgym = CLIENTS[env](gateway.url)
    for number in (3, 1):
        twin = twin_of(native, env, number)
        assert agentgym.reset(number) == shown(env, twin.observation), "the very task that was asked for"
        rewards: list[float] = []
        done, total = False, 0.0
        while not done:
            action = native.expert(twin.session_id).action
            expected = native.step(twin.session_id, len(rewards), action)
            observation, reward, done = agentgym.step(action)
            assert (observation, done) == (shown(env, expected.observation), expected.terminated or expected.truncated)
            assert agentgym.get("observation") == observation
            rewards.append(reward)
            total += expected.reward
        assert expected.score == 1.0
        assert rewards[-1] == (pytest.approx(total) if env == "sciworld" else expected.reward)
        assert rewards[-1] == (100 if env == "sciworld" else 1)
        native.close(twin.session_id)


@pytest.mark.parametrize("env", WORLDS)
def test_answers_have_exactly_agentgyms_fields(gateway: ServiceProcess, env: str) -> None:
    client = CLIENTS[env](gateway.url)

    reset = client.post("reset", {client.id_key: client.id, client.selector: 0, **world_type(env)})
    step = client.post("step", {client.id_key: client.id, "action": "nonsense"})

    if env in INDEXED:
        assert [type(part) for part in reset] == [str, type(None)]
        assert (set(step), step["info"]) == (STATE, None), "AgentGym's sqlgym tells the solution there"
    elif env == "alfworld":
        assert set(reset) == {"id", "observation", "available_actions", "task_type"}
        assert set(step) == STEP | {"available_actions"}
    else:
        told = {"task_name", "var_num", "task_description", "observation", "reward", "score", "deleted", "done"}
        assert (set(reset), set(step)) == (told, STEP | {"score"})
        assert (reset["reward"], reset["score"], reset["deleted"], reset["done"]) == (0, 0, False, False)
        assert reset["task_name"]
        assert isinstance(reset["var_num"], int)


def world_type(env: str) -> dict[str, str]:
    return {"world_type": "Text"} if env == "alfworld" else {}


@pytest.mark.parametrize("env", WORLDS)
def test_ids_are_ints_that_nobody_can_guess(gateway: ServiceProcess, env: str) -> None:
    ids = [CLIENTS[env](gateway.url).id for _ in range(5)]

    assert len(set(ids)) == 5
    assert all(isinstance(number, int) and 0 <= number < 2**48 for number in ids)
    assert max(ids) > 2**32, "not a counter"


@pytest.mark.parametrize("env", WORLDS)
def test_a_wrong_id_is_told_as_agentgyms_server_does(gateway: ServiceProcess, env: str) -> None:
    client, other = CLIENTS[env](gateway.url), CLIENTS["sciworld" if env != "sciworld" else "alfworld"](gateway.url)

    for number in (0, -1, client.id + 1, other.id):
        for answer in (
            post(f"{client.base}/step", {client.id_key: number, "action": "x"}),
            post(f"{client.base}/reset", {client.id_key: number, client.selector: 0, **world_type(env)}),
            get(f"{client.base}/observation?{client.id_key}={number}"),
        ):
            assert answer.status_code == (500 if env in INDEXED else 200)
            assert answer.json() == {"error": f"The id {number} is not valid."}


@pytest.mark.parametrize("env", WORLDS)
def test_an_unplayed_or_finished_id_is_told_to_reset(gateway: ServiceProcess, env: str) -> None:
    client = CLIENTS[env](gateway.url)
    before = post(f"{client.base}/step", {client.id_key: client.id, "action": "x"})

    assert "reset it first" in before.json()["error"]
    assert before.status_code == (500 if env in INDEXED else 200)


@pytest.mark.parametrize("env", WORLDS)
def test_a_root_answers_as_agentgyms_does(gateway: ServiceProcess, env: str) -> None:
    banner = {"alfworld": "This is environment AlfWorld.", "sciworld": "This is environment ScienceWorld."}
    path = CLIENTS[env].path

    for url in (f"{gateway.url}/agentgym{path}", f"{gateway.url}/agentgym{path}/"):
        assert get(url).json() == banner.get(env, "ok")


@pytest.mark.parametrize("env", ["alfworld", "sciworld", "webshop"])
def test_what_their_clients_call_close_is_there(gateway: ServiceProcess, env: str) -> None:
    client: Any = CLIENTS[env](gateway.url)
    closed: list[Any] = [{"closed": True}, {"closed": False}] if env == "webshop" else [True, False]

    assert [client.close() for _ in range(2)] == closed
    assert "not valid" in post(f"{client.base}/step", {client.id_key: client.id, "action": "x"}).json()["error"]


def test_sqlgym_has_no_close(gateway: ServiceProcess) -> None:
    assert post(f"{gateway.url}/agentgym/sqlgym/close", {"env_idx": 1}).status_code == 404


def test_creates_need_no_body_and_tell_the_id_in_their_own_way(gateway: ServiceProcess) -> None:
    created = {
        path: post(f"{gateway.url}/agentgym/{path}/create") for path in ("alfworld", "sciworld", "sqlgym", "webshop")
    }

    assert {answer.status_code for answer in created.values()} == {200}
    assert [set(created[path].json()) for path in ("alfworld", "sciworld")] == [{"id"}] * 2
    assert [type(created[path].json()) for path in ("sqlgym", "webshop")] == [int] * 2


@pytest.mark.parametrize("env", INDEXED)
def test_the_ids_that_are_listed_are_the_callers(gateway: ServiceProcess, env: str) -> None:
    clients = [CLIENTS[env](gateway.url) for _ in range(3)]
    other = CLIENTS["webshop" if env == "sql" else "sql"](gateway.url)

    listed = get(f"{clients[0].base}/list_envs").json()

    assert {client.id for client in clients} <= set(listed)
    assert other.id not in listed


def test_alfworlds_commands_come_with_every_answer(gateway: ServiceProcess, native: SyncGatewayClient) -> None:
    client = AlfWorldClient(gateway.url)
    assert client.get("available_actions") == []
    twin = twin_of(native, "alfworld", 2)
    client.reset(2)
    assert client.available == twin.info["available_actions"]
    assert len(client.available) > 1

    action = client.available[0]
    client.step(action)

    assert client.available == native.step(twin.session_id, 0, action).info["available_actions"]
    assert client.get("available_actions") == client.available


def test_alfworlds_world_types_are_agentgyms(gateway: ServiceProcess) -> None:
    client = AlfWorldClient(gateway.url)

    answers = [client.post("reset", {"id": client.id, "game": 1, "world_type": kind}) for kind in ("Embody", "Real")]

    assert answers[0]["observation"]
    assert answers[1] == {"error": 'world_type must be one of "Text", "Embody" and "Hybrid"'}


def test_sciworlds_description_is_the_first_observations_beginning(gateway: ServiceProcess) -> None:
    client = SciWorldClient(gateway.url)
    assert client.get("task_description") == ""

    first = client.reset(5)

    description = client.get("task_description")
    assert description.startswith("Your task is to ")
    assert first.startswith(f"{description}\nThis ")
    assert description not in first.removeprefix(description)


def test_sciworlds_points_are_told_from_the_reset_on(gateway: ServiceProcess) -> None:
    client = SciWorldClient(gateway.url)
    number = agentgym_games(recorded=False).index(("find-living-thing", 150))  # what is looked for stands in the room

    reset = client.post("reset", {"id": client.id, "data_idx": number})
    step = client.post("step", {"id": client.id, "action": "look around"})

    assert (reset["task_name"], reset["var_num"]) == ("find-living-thing", 150)
    assert (reset["reward"], reset["score"], step["score"]) == (8, 8, 8)


def test_sqlgym_plays_one_query(gateway: ServiceProcess) -> None:
    client = SqlGymClient(gateway.url)
    question = client.reset(4)
    assert "contains tables such as" in question

    state, reward, done = client.step("SELECT 1")

    assert (reward, done) == (0, True)
    assert "1" in state
    again = post(f"{client.base}/step", {"env_idx": client.id, "action": "SELECT 1"})
    assert (again.status_code, again.json()) == (500, {"error": f"The task with environment {client.id} has finished."})
    assert client.reset(4) == question


def test_webshops_pages_say_what_can_be_done(gateway: ServiceProcess, native: SyncGatewayClient) -> None:
    client = WebShopClient(gateway.url)
    assert client.get("available_actions") == {"has_search_bar": False, "clickables": []}
    assert client.get("instruction_text") == ""
    twin = twin_of(native, "webshop", 6)

    first = client.reset(6)

    instruction = client.get("instruction_text")
    assert instruction
    assert first == f"WebShop [SEP] Instruction: [SEP] {instruction} [SEP] Search"
    offered = client.get("available_actions")
    assert offered == {"has_search_bar": True, "clickables": ["search"]}
    assert offered == {name: twin.info[name] for name in offered}
    client.step("search[a]")
    found = client.get("available_actions")
    assert found["has_search_bar"] is False
    assert "back to search" in found["clickables"]


@pytest.mark.parametrize(("env", "holds"), [("alfworld", 23), ("sciworld", 26), ("sql", 22), ("webshop", 22)])
async def test_the_conformance_kit_finds_no_fault(gateway: ServiceProcess, env: str, holds: int) -> None:
    async with ServerUnderTest.at(f"{gateway.url}/agentgym{CLIENTS[env].path}") as site:
        assert await find_protocol(site) is Protocol.AGENTGYM
        [(name, target)] = await find_targets(site, Protocol.AGENTGYM, [])
        section = await examine(name, checks_of(Protocol.AGENTGYM), target)

    assert {one.id: one.seen for one in section.results if one.verdict is Verdict.FAILS} == {}
    assert section.count(Verdict.HOLDS) == holds


@pytest.mark.parametrize("env", WORLDS)
def test_a_task_number_beyond_the_last_is_answered(
    gateway: ServiceProcess, native: SyncGatewayClient, env: str
) -> None:
    client = CLIENTS[env](gateway.url)
    spec = native.environment(env)

    answer = post(f"{client.base}/reset", {client.id_key: client.id, client.selector: 10**9 + 7, **world_type(env)})

    if spec.task_source == "generated":
        assert answer.status_code == 200
        assert answer.json() == client.post(
            "reset", {client.id_key: client.id, client.selector: (10**9 + 7) % spec.splits["train"], **world_type(env)}
        )
    else:
        assert answer.status_code == (500 if env in INDEXED else 200)
        assert "error" in answer.json()


@pytest.mark.parametrize("env", INDEXED)
def test_a_client_that_tries_five_times_gets_no_observation_from_a_failed_machinery(tmp_path: Path, env: str) -> None:
    server = gateway_fleet.env_server(tmp_path, env)
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway):
        client: Any = CLIENTS[env](gateway.url)
        assert isinstance(client, IndexedClient)
        client.reset(0)
        server.kill()

        answers = [post(f"{client.base}/step", {"env_idx": client.id, "action": "x"}) for _ in range(ATTEMPTS)]

    assert (answers[0].status_code, answers[0].json()["type"]) == (410, "/problems/session-lost")
    assert {answer.status_code for answer in answers[1:]} == {500}
    assert all("reset it first" in answer.json()["error"] for answer in answers[1:])
