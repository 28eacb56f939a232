"""AgentGym's clients, unmodified, play through the gateway: those of its light environments."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import gymfleet_envs.babyai
import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_contracts.session import OpenSession
from redis import Redis

from tests.fixtures import gateway_fleet
from tests.fixtures.agentgym_clients import (
    CLIENTS,
    AgentGymClient,
    MazeClient,
    TextCraftClient,
    WordleClient,
    get,
    post,
)
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.paths import SHARED_DATA
from tests.fixtures.redis_server import RedisServer

DATA = SHARED_DATA
ENVIRONMENTS = ("textcraft", "babyai", "maze", "wordle")
BABYAI_LEVELS = Path(gymfleet_envs.babyai.__file__).parent / "agentgym"


@dataclass(frozen=True)
class Front:
    """Where the gateway is, and whether its tasks are the benchmarks'."""

    gateway: ServiceProcess
    benchmark: bool


def sources() -> list[str]:
    return ["generated", "benchmark"] if DATA.is_dir() else ["generated"]


@pytest.fixture(scope="module", params=sources())
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    logs = tmp_path_factory.mktemp("front")
    settings = {"expert_splits": '["train", "validation", "test"]'}
    if request.param == "benchmark":
        folders = {env: DATA / env for env in ENVIRONMENTS} | {"babyai": BABYAI_LEVELS}
        settings["data"] = json.dumps({env: str(folder) for env, folder in folders.items() if folder.is_dir()})
    server = gateway_fleet.env_server(logs, *ENVIRONMENTS, **settings)
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield Front(gateway, request.param == "benchmark")


def native_task(client: SyncGatewayClient, env: str, number: int) -> OpenSession:
    """The task that AgentGym's number must mean."""
    if client.environment(env).task_source == "generated":
        return OpenSession(env=env, task_index=number, level="shared_400" if env == "wordle" else None)
    return OpenSession(env=env, task_id=f"lmrlgym_maze_{number}" if env == "maze" else str(number))


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_an_episode_is_won_and_the_next_one_reuses_the_id(front: Front, env: str) -> None:
    agentgym = CLIENTS[env](front.gateway.url)
    with SyncGatewayClient(front.gateway.url) as native:
        for number in (3, 1):
            twin = native.open(native_task(native, env, number))  # tells us what an expert would do
            assert agentgym.reset(number) == twin.observation, "the very task that was asked for"
            assert agentgym.get("observation") == twin.observation
            total, done, steps = 0.0, False, 0
            while not done:
                action = native.expert(twin.session_id).action
                expected = native.step(twin.session_id, steps, action)
                observation, reward, done = agentgym.step(action)
                assert (observation, done) == (expected.observation, expected.terminated or expected.truncated)
                total += reward
                steps += 1
            assert expected.score == 1.0
            assert 0 < total <= 1

            refused = agentgym.post("step", {"id": agentgym.id, "action": action})
            assert refused == {"error": f"The task with environment {agentgym.id} has finished."}


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_answers_have_exactly_agentgyms_fields(front: Front, env: str) -> None:
    client = CLIENTS[env](front.gateway.url)

    reset = client.post("reset", {"id": client.id, client.selector: 0})
    step = client.post("step", {"id": client.id, "action": "nonsense"})

    fields = {
        "textcraft": ({"id", "observation", "done", "reward"}, {"observation", "reward", "done"}),
        "babyai": (
            {"observation", "reward", "score", "deleted", "done"},
            {"observation", "reward", "score", "done"},
        ),
        "maze": ({"observation"}, {"observation", "reward", "done"}),
        "wordle": ({"id", "observation"}, {"observation", "reward", "done"}),
    }
    assert (set(reset), set(step)) == fields[env], "and so no info, in which a solution could hide"


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_ids_are_ints_that_nobody_can_guess(front: Front, env: str) -> None:
    ids = [CLIENTS[env](front.gateway.url).id for _ in range(5)]

    assert len(set(ids)) == 5
    assert all(isinstance(number, int) and 0 <= number < 2**48 for number in ids)
    assert max(ids) > 2**32, "not a counter"


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_wrong_id_is_an_error_with_status_200(front: Front, env: str) -> None:
    client = CLIENTS[env](front.gateway.url)
    other = CLIENTS["maze" if env != "maze" else "wordle"](front.gateway.url)

    for number in (0, -1, client.id + 1, other.id):
        answers = [
            client.post("step", {"id": number, "action": "x"}),
            client.post("reset", {"id": number, client.selector: 0}),
            client.checked(get(f"{client.base}/observation?id={number}")),
        ]
        assert answers == [{"error": f"The id {number} is not valid."}] * 3


@pytest.mark.parametrize("env", ["textcraft", "babyai"])
def test_closing_says_whether_there_was_something_to_close(front: Front, env: str) -> None:
    client = CLIENTS[env](front.gateway.url)

    assert [client.post("close", {"id": client.id}) for _ in range(2)] == [True, False]
    assert "error" in client.post("step", {"id": client.id, "action": "x"})


@pytest.mark.parametrize("env", ["maze", "wordle"])
def test_where_agentgym_has_no_close_there_is_none(front: Front, env: str) -> None:
    base = CLIENTS[env](front.gateway.url).base

    assert post(f"{base}/close", {"id": 1}).status_code == 404


def test_textcraft_create_needs_a_body_and_has_an_episode_at_once(front: Front) -> None:
    base = f"{front.gateway.url}/agentgym/textcraft"

    assert post(f"{base}/create").status_code == 422
    created = post(f"{base}/create", TextCraftClient.create_body).json()
    assert set(created) == {"id", "observation", "done", "reward"}
    assert "Goal: craft" in created["observation"]


def test_the_other_creates_need_none(front: Front) -> None:
    for path in ("babyai", "maze/maze", "wordle/wordle"):
        created = post(f"{front.gateway.url}/agentgym/{path}/create")
        assert (created.status_code, set(created.json())) == (200, {"id"})


def test_an_unplayed_id_is_told_to_reset(front: Front) -> None:
    client = CLIENTS["maze"](front.gateway.url)

    assert "reset it first" in client.post("step", {"id": client.id, "action": "move up"})["error"]


def test_wordles_vocabulary_is_what_may_be_guessed(front: Front) -> None:
    client = WordleClient(front.gateway.url)
    assert len(client.vocabulary) >= 10
    assert all(re.fullmatch(r"[a-z]{5}", word) for word in client.vocabulary)

    client.reset(0)
    observation, reward, _ = client.step(" ".join(client.vocabulary[0]))

    assert re.fullmatch(r"[byg]( [byg]){4}\s*", observation) is not None
    assert reward in (0, 1)
    assert "invalid" in client.step("x x x x x")[0]


def test_wordles_vocabulary_is_that_of_every_game(front: Front) -> None:
    client = WordleClient(front.gateway.url)

    for number in (0, 1, 17, 1450):
        client.reset(number)
        answers = [client.step(" ".join(word))[0].strip() for word in client.vocabulary[number % 5 : number % 5 + 2]]
        assert all(re.fullmatch(r"[byg]( [byg]){4}", answer) for answer in answers), (number, answers)


def test_a_maze_that_is_not_solved_in_time_costs_one(front: Front) -> None:
    client = CLIENTS["maze"](front.gateway.url)
    client.reset(0)

    rewards = []
    done = False
    while not done:
        observation, reward, done = client.step("dance")
        rewards.append(reward)

    assert (observation, rewards[-1], set(rewards[:-1])) == ("Failure\n", -1, {0})
    if front.benchmark:
        assert len(rewards) == 50


def test_textcraft_numbers_go_round(front: Front) -> None:
    client = CLIENTS["textcraft"](front.gateway.url)
    with SyncGatewayClient(front.gateway.url) as native:
        count = 544 if front.benchmark else native.environment("textcraft").splits["train"]

    assert client.reset(5) == client.reset(count + 5)


def test_a_benchmark_task_that_does_not_exist_is_an_error_and_no_other_task(front: Front) -> None:
    if not front.benchmark:
        return
    client = CLIENTS["maze"](front.gateway.url)

    assert "error" in client.post("reset", {"id": client.id, "game": 26})
    assert "reset it first" in client.post("step", {"id": client.id, "action": "move up"})["error"]


def test_a_root_answers_as_agentgyms_does(front: Front) -> None:
    for env, name in (("textcraft", "TextCraft"), ("babyai", "BabyAI"), ("maze", "LMRL-Gym"), ("wordle", "LMRL-Gym")):
        for url in (f"{front.gateway.url}/agentgym/{env}", f"{front.gateway.url}/agentgym/{env}/"):
            assert AgentGymClient.checked(get(url)) == f"This is environment {name}."


def test_idle_ids_expire_with_their_sessions_and_a_flood_is_refused(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url], agentgym_idle_s="1", agentgym_max_sessions="3")
    with gateway_fleet.running(server, gateway):
        clients = [MazeClient(gateway.url) for _ in range(3)]
        for client in clients:
            client.reset(0)
        refused = post(f"{gateway.url}/agentgym/maze/maze/create")
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/unavailable")

        deadline = time.monotonic() + 20
        while 'agentgym_sessions{env="maze"} 0.0' not in get(f"{gateway.url}/metrics").text:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert _settled(server.url) == {}, "nor is a slot still taken"
        assert "not valid" in clients[0].post("step", {"id": clients[0].id, "action": "move up"})["error"]


def test_an_episode_goes_on_over_any_gateway_and_through_the_death_of_one(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as redis:
        server = gateway_fleet.env_server(tmp_path, "maze", expert_splits='["train"]')
        gateways = [gateway_fleet.gateway(tmp_path, [server.url], redis_url=redis.url) for _ in range(2)]
        with gateway_fleet.running(server, *gateways), SyncGatewayClient(gateways[1].url) as native:
            client = MazeClient(gateways[0].url)
            bases = [f"{gateway.url}/agentgym/maze/maze" for gateway in gateways]
            twin = native.open(native_task(native, "maze", 7))
            client.base = bases[1]
            assert client.reset(7) == twin.observation

            played = 0
            done = False
            while not done:
                if played == 4:
                    gateways[0].kill()
                client.base = bases[played % 2 if played < 4 else 1]
                action = native.expert(twin.session_id).action if played >= 4 else "dance"
                expected = native.step(twin.session_id, played, action)
                observation, _, done = client.step(action)
                assert observation == expected.observation, "each step was played once, on the one episode"
                played += 1

            assert (played > 4, expected.score) == (True, 1.0)
            with Redis(port=redis.port) as direct:
                keys = [key for key in direct.keys("gymfleet:gateway:agentgym*") if isinstance(key, bytes)]
                assert len(keys) == 2, "the id and the index"
                assert all(direct.ttl(key) > 0 for key in keys)


def test_ids_belong_to_their_tenant(tmp_path: Path) -> None:
    key = "a key of these tests"
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url], api_key=key)
    with gateway_fleet.running(server, gateway):
        client = MazeClient(f"http://any:{quote(key)}@127.0.0.1:{gateway.port}")
        client.reset(0)

        assert post(f"{gateway.url}/agentgym/maze/maze/create").status_code == 401
        step = {"id": client.id, "action": "move up"}
        assert post(f"{gateway.url}/agentgym/maze/maze/step", step).status_code == 401
        assert client.step("move up")[2] is False


def test_a_failure_of_the_machinery_is_no_observation(tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway):
        client = MazeClient(gateway.url)
        client.reset(0)
        server.kill()

        lost = post(f"{client.base}/step", {"id": client.id, "action": "move up"})
        again = client.post("step", {"id": client.id, "action": "move up"})

    assert (lost.status_code, lost.json()["type"]) == (410, "/problems/session-lost")
    assert "reset it first" in again["error"]


def _settled(server_url: str) -> object:
    """The env server's open sessions, once it reports none; it reports now and then."""
    deadline = time.monotonic() + 20
    while True:
        sessions: object = get(f"{server_url}/v1/load").json()["sessions"]
        if not sessions or time.monotonic() > deadline:
            return sessions
        time.sleep(0.1)
