"""AgentGym servers as environments of ours: our own front stands for theirs, over real worlds."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_client.errors import SessionLost
from gymfleet_contracts.session import OpenSession, Session
from gymfleet_env_server.catalogue import load_entry
from gymfleet_envs.adapters.agentgym import from_agentgym
from gymfleet_envs.environment import EngineLost

from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess

WORLDS = ("textcraft", "babyai", "maze", "webshop", "sql")
THEIR_NAME = {"sql": "sqlgym"}
FILE = """
from gymfleet_envs.adapters.agentgym import from_agentgym

ENVIRONMENT = from_agentgym("{url}", "{name}", train=range(8), test=range(8, 12), title="there_{world}")
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    logs = tmp_path_factory.mktemp("theirs")
    server = gateway_fleet.env_server(logs, *WORLDS, expert_splits='["train", "validation", "test"]')
    gateway = gateway_fleet.gateway(logs, [server.url])
    with gateway_fleet.running(server, gateway):
        yield gateway


def url_of(gateway: ServiceProcess, world: str) -> str:
    name = THEIR_NAME.get(world, world)
    return f"{gateway.url}/agentgym/{name}" + ("/maze" if world == "maze" else "")


@pytest.fixture(scope="module")
def ours(theirs: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncGatewayClient]:
    """A gateway over an env server that plays what the other one serves."""
    directory = tmp_path_factory.mktemp("ours")
    files = []
    for world in WORLDS:
        files.append(directory / f"{world}.py")
        files[-1].write_text(FILE.format(url=url_of(theirs, world), name=THEIR_NAME.get(world, world), world=world))
    server = gateway_fleet.env_server(directory, *map(str, files))
    gateway = gateway_fleet.gateway(directory, [server.url])
    with gateway_fleet.running(server, gateway), SyncGatewayClient(gateway.url) as client:
        yield client


def twin_of(native: SyncGatewayClient, world: str, number: int) -> Session:
    """The session of which the front answers for AgentGym's number."""
    return native.open(OpenSession(env=world, task_index=number))


@pytest.mark.parametrize("world", WORLDS)
def test_an_expert_solves_there_what_it_solves_here(
    theirs: ServiceProcess, ours: SyncGatewayClient, world: str
) -> None:
    with SyncGatewayClient(theirs.url) as native:
        played = ours.open(OpenSession(env=f"there_{world}", split="train", task_id="3"))
        twin = twin_of(native, world, 3)
        outcome: Any = None
        for index in range(20):
            move = native.expert(twin.session_id)
            expected = native.step(twin.session_id, index, move.action)
            outcome = ours.step(played.session_id, index, move.action)

            assert outcome.terminated == expected.terminated
            if expected.terminated:
                break

        assert (outcome.terminated, outcome.score) == (True, 1.0)
        native.close(twin.session_id)
        ours.close(played.session_id)


ANSWERS = {
    "no JSON": b"<html>",
    "depth": b"[" * 100_000,
    "error": b'{"error": "The task with environment 7 has finished."}',
    "not a number": b'{"observation": "x", "reward": NaN, "done": false}',
    "no reward": b'{"observation": "x", "done": false}',
    "no text": b'{"reward": 0, "done": false}',
    "no done": b'{"observation": "x", "reward": 0}',
    "flood": b'"' + b"x" * (5 << 20) + b'"',
}


class Broken(BaseHTTPRequestHandler):
    """Answers `/create` and `/reset`, and each step as its action says, counting how often it came."""

    steps = 0

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/create":
            self.answer(200, b'{"id": 7}')
        elif self.path == "/reset":
            self.answer(200, b'{"observation": "begun"}')
        elif self.path == "/step":
            type(self).steps += 1
            self.fail_as(body.decode())

    def fail_as(self, body: str) -> None:
        if "hang up" in body:
            self.close_connection = True
        elif "teapot" in body:
            self.answer(418, b"short and stout")
        else:
            self.answer(200, next(content for name, content in ANSWERS.items() if name in body))

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def broken() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("hang up", "/step: "),
        ("teapot", "/step answered 418: short and stout"),
        ("no JSON", "/step answered no JSON: <html>"),
        ("depth", "/step answered no JSON: [[["),
        ("error", "/step: The task with environment 7 has finished."),
        ("not a number", "/step answered reward nan, which is no number"),
        ("no reward", "/step answered reward None, which is no number"),
        ("no text", "/step answered without observation"),
        ("no done", "/step answered without done"),
        ("flood", "/step answers with more than 4 MiB"),
    ],
)
async def test_a_step_that_fails_is_lost_and_never_sent_again(broken: str, action: str, told: str) -> None:
    world = from_agentgym(broken, "textcraft", test=range(1))()
    assert await world.reset(0, 0) == "begun"
    before = Broken.steps

    with pytest.raises(EngineLost) as lost:
        await world.step(action)

    assert told in str(lost.value)
    assert Broken.steps == before + 1
    await world.close()


def test_a_session_whose_server_died_is_lost_and_never_scored(broken: str, tmp_path: Path) -> None:
    file = tmp_path / "there.py"
    file.write_text(FILE.format(url=broken, name="textcraft", world="textcraft"))
    server = gateway_fleet.env_server(tmp_path, str(file))
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway), SyncGatewayClient(gateway.url) as client:
        session = client.open(OpenSession(env="there_textcraft", split="test", task_index=0))

        with pytest.raises(SessionLost):
            client.step(session.session_id, 0, "hang up")


def test_a_server_of_unknown_words_is_refused() -> None:
    with pytest.raises(ValueError, match="AgentGym has no chess: give a dialect, or one of alfworld, babyai"):
        from_agentgym("http://127.0.0.1:1", "chess", test=range(1))


def test_splits_have_the_numbers_that_were_given(tmp_path: Path) -> None:
    file = tmp_path / "there.py"
    file.write_text(FILE.format(url="http://127.0.0.1:1", name="textcraft", world="textcraft"))

    entry = load_entry(str(file), {})

    assert entry.spec.splits == {"train": 8, "validation": 0, "test": 4}
    assert entry.tasks.by_index("test", "only", 1).data == 9
    assert not entry.spec.capabilities.deterministic
