"""Who gets in, with real processes: a gateway and an env server that ask for keys, and a browser's way past headers."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest
import websockets
from gymfleet_client.multiplex import stream_url
from gymfleet_client.rest import GatewayClient
from gymfleet_client.stream import SessionStream
from gymfleet_contracts.session import OpenSession
from websockets.asyncio.client import connect

from tests.fixtures import gateway_fleet
from tests.fixtures.gateway_fleet import ServiceProcess

KEY: Final = "what agents of these tests show"
ENV_KEY: Final = "what gateways of these tests show"
PAGE: Final = "https://play.example.org"


@dataclass(frozen=True)
class Guarded:
    """Both ask for a key."""

    server: ServiceProcess
    gateway: ServiceProcess


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    logs = tmp_path_factory.mktemp("guarded")
    server = gateway_fleet.env_server(logs, "maze", api_key=ENV_KEY)
    gateway = gateway_fleet.gateway(
        logs, [server.url], api_key=KEY, replica_api_key=ENV_KEY, allowed_origins=f'["{PAGE}"]'
    )
    with gateway_fleet.running(server, gateway):
        yield Guarded(server, gateway)


async def test_the_gateway_plays_on_an_env_server_that_nobody_else_reaches(guarded: Guarded) -> None:
    async with GatewayClient(guarded.gateway.url, api_key=KEY) as rest:
        session = await rest.open(OpenSession(env="maze", task_index=0))
        assert (await rest.step(session.session_id, 0, "move up")).observation

    async with httpx.AsyncClient(base_url=guarded.server.url, trust_env=False) as http:
        assert (await http.get("/v1/environments")).status_code == 401
        assert (await http.get("/healthz")).status_code == 200
    with pytest.raises(websockets.InvalidStatus) as refused:
        await connect(stream_url(guarded.server.url), proxy=None)
    assert refused.value.response.status_code == 401
    known = {"Authorization": f"Bearer {ENV_KEY}"}
    async with connect(stream_url(guarded.server.url), proxy=None, additional_headers=known):
        pass


@pytest.mark.parametrize("service", ["server", "gateway"])
async def test_no_page_opens_a_socket_or_sends_a_form(guarded: Guarded, service: str) -> None:
    url, key = (guarded.server.url, ENV_KEY) if service == "server" else (guarded.gateway.url, KEY)
    headers = {"Authorization": f"Bearer {key}"}

    for foreign in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(stream_url(url), proxy=None, additional_headers=headers | foreign)
        assert refused.value.response.status_code == 403
    async with httpx.AsyncClient(trust_env=False) as http:
        form = {"content-type": "text/plain", "origin": "https://evil.example"}  # which needs no preflight
        answer = await http.post(f"{url}/v1/sessions", content=b"{}", headers=headers | form)
        assert answer.status_code == 403
        assert answer.json()["type"] == "/problems/forbidden"


async def test_a_listed_page_plays_over_a_socket_with_a_ticket(guarded: Guarded) -> None:
    page = {"Origin": PAGE}
    async with httpx.AsyncClient(base_url=guarded.gateway.url, headers=page, trust_env=False) as http:
        assert (await http.post("/v1/tickets")).status_code == 401
        answer = await http.post("/v1/tickets", headers={"Authorization": f"Bearer {KEY}"})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (201, PAGE)
    ticket = answer.json()["ticket"]
    url = f"{stream_url(guarded.gateway.url)}?ticket={ticket}"

    attempts = await asyncio.gather(
        *(connect(url, proxy=None, additional_headers=page) for _ in range(4)), return_exceptions=True
    )

    opened = [one for one in attempts if not isinstance(one, BaseException)]
    refused = [one.response.status_code for one in attempts if isinstance(one, websockets.InvalidStatus)]
    assert (len(opened), refused) == (1, [401] * 3), "it is good once, also for those who come at once"
    await opened[0].close()
    assert ticket not in guarded.gateway.log()
    assert KEY not in guarded.gateway.log()


def test_a_gateway_with_a_wrong_key_says_so(guarded: Guarded, tmp_path: Path) -> None:
    wrong = gateway_fleet.gateway(tmp_path, [guarded.server.url], replica_api_key="not the key", startup_grace_s="0.1")
    wrong.start()
    try:
        deadline = time.monotonic() + gateway_fleet.START_TIMEOUT_S
        while "REPLICA_API_KEY" not in _unready_because(wrong.url):
            assert time.monotonic() < deadline, wrong.log()
            time.sleep(0.05)
    finally:
        wrong.stop()
    assert wrong.log().count("replica.key_refused") == 1, "once, and not at each probe"


def _unready_because(url: str) -> str:
    try:
        return str(httpx.get(f"{url}/readyz", trust_env=False).json().get("detail"))
    except httpx.TransportError:
        return ""


async def test_the_socket_needs_no_ticket_of_those_who_can_send_a_header(guarded: Guarded) -> None:
    async with SessionStream(guarded.gateway.url, api_key=KEY) as stream:
        assert (await stream.open(OpenSession(env="maze", task_index=0))).observation


@pytest.mark.parametrize(
    ("service", "path", "garbage"),
    [
        pytest.param("server", "/v1/stream", b"\xc1", id="env server"),
        pytest.param("gateway", "/v1/stream", b"\xc1", id="gateway"),
        pytest.param("gateway", "/v1/stream", b"\xdc\x03\xe8" + b"\x01" * 1000, id="a thousand in one message"),
        pytest.param("gateway", "/openenv/maze/ws", "x", id="OpenEnv"),
        pytest.param("gateway", "/openenv/maze/mcp", "x", id="OpenEnv's JSON-RPC"),
    ],
)
async def test_a_flood_of_garbage_is_answered_a_few_times_and_then_not_at_all(
    guarded: Guarded, service: str, path: str, garbage: bytes | str
) -> None:
    url, key = (guarded.server.url, ENV_KEY) if service == "server" else (guarded.gateway.url, KEY)
    headers = {"Authorization": f"Bearer {key}"}
    answered = 0
    async with connect(url.replace("http", "ws") + path, proxy=None, additional_headers=headers) as socket:

        async def flood() -> None:
            with contextlib.suppress(websockets.ConnectionClosed):
                for _ in range(2000):
                    await socket.send(garbage)

        flooding = asyncio.create_task(flood())
        with contextlib.suppress(websockets.ConnectionClosed):
            async with asyncio.timeout(30):
                while True:
                    answered += len(await socket.recv())
        await flooding

    assert socket.close_code in (1008, 1006), "1006: garbage was under way when the server hung up"
    assert answered < 8192
