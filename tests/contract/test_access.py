"""Every route and every socket of every service: which web pages may ask it, and who may without a key."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from fastapi import FastAPI
from gymfleet_env_gateway.app import build_app as gateway_app
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_server.app import build_app as env_app
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_env_server.shards.pool import ShardPool
from gymfleet_reward.app import build_app as reward_app
from gymfleet_reward.settings import RewardSettings
from gymfleet_rollout.app import build_app as rollout_app
from gymfleet_rollout.backend import BackendOptions
from gymfleet_rollout.backends.embedded import Embedded
from gymfleet_rollout.model import ModelPlace
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_trainer.app import create as trainer_app
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.settings import TrainerSettings
from prometheus_client import CollectorRegistry
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute

KEY: Final = "the key of this test"
LISTED: Final = "https://play.example.org"
CALLERS: Final[dict[str, Any]] = {
    "api_key": KEY, "host": "0.0.0.0", "allowed_hosts": ("gym.example.org", "*.fleet"),  # noqa: S104
    "allowed_origins": (LISTED,),
}  # fmt: skip

WITHOUT_A_KEY: Final = {
    # Probes and scrapers send none; the document is in the repository anyway.
    "/healthz", "/readyz", "/metrics", "/openapi.json",
    # The page holds nothing: what it asks for itself needs the key that a person types into it.
    "/play/{env}",
    # OpenEnv's clients ask these before anything else, and send no key with them.
    "/openenv/{env}/health", "/openenv/{env}/openapi.json",
    # AgentGym's clients look whether a server is there; it answers with a fixed sentence.
    "/agentgym/academia", "/agentgym/alfworld", "/agentgym/babyai", "/agentgym/maze", "/agentgym/movie",
    "/agentgym/sciworld", "/agentgym/searchqa", "/agentgym/sheet", "/agentgym/sqlgym", "/agentgym/textcraft",
    "/agentgym/todo", "/agentgym/weather", "/agentgym/webshop", "/agentgym/wordle",
}  # fmt: skip
"""All that answers without a key, of all services. What is new needs one, or an entry here with its reason."""


class Place(NamedTuple):
    """A route of an app: `method` is empty for a socket."""

    service: str
    method: str
    path: str


def gateway(_: Path) -> FastAPI:
    given = {"replicas": ["http://127.0.0.1:9"], "secret": "0123456789abcdef", **CALLERS}
    return gateway_app(GatewaySettings.model_validate(given), registry=CollectorRegistry())


def env_server(_: Path) -> FastAPI:
    settings = EnvServerSettings.model_validate(CALLERS)
    return env_app(ShardPool(("maze",), settings), settings.rules("/play/"))


def reward(_: Path) -> FastAPI:
    return reward_app(RewardSettings.model_validate(CALLERS))


def rollout(directory: Path) -> FastAPI:
    settings = RolloutSettings.model_validate({"model": str(directory), **CALLERS})
    return rollout_app(settings, ModelPlace(directory), Embedded(BackendOptions()), lambda: None)


def trainer(directory: Path) -> FastAPI:
    reporter = Reporter(RunDirectory(directory / "run"), "run")
    return trainer_app(reporter, TrainerSettings.model_validate(CALLERS).rules())


SERVICES: Final[dict[str, Callable[[Path], FastAPI]]] = {
    "gateway": gateway, "env server": env_server, "reward": reward, "rollout": rollout, "trainer": trainer,
}  # fmt: skip


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FastAPI]:
    directory = tmp_path_factory.mktemp("apps")
    (directory / "run").mkdir()
    return {name: make(directory) for name, make in SERVICES.items()}


@pytest.fixture(scope="module")
def places(apps: dict[str, FastAPI]) -> list[Place]:
    return [Place(name, *found) for name, app in apps.items() for found in walked(app.routes)]


def walked(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, Mount):
            yield from walked(list(route.routes), prefix + route.path)
        elif isinstance(route, WebSocketRoute):
            yield "", prefix + route.path
        elif isinstance(route, Route):
            yield from ((method, prefix + route.path) for method in sorted((route.methods or set()) - {"HEAD"}))
        else:
            raise AssertionError(f"{route!r} is of a kind that this test does not know")


async def asked(app: FastAPI, place: Place, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer; 101 for a socket that was accepted."""
    path = place.path.replace("{env}", "maze").replace("{", "").replace("}", "")
    kind = "http" if place.method else "websocket"
    given = {"host": "10.1.2.3:8110", **headers}
    scope: dict[str, Any] = {
        "type": kind, "method": place.method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "scheme": "http" if place.method else "ws", "http_version": "1.1", "state": {},
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("10.9.9.9", 40000), "server": ("10.1.2.3", 8110), "extensions": {"websocket.http.response": {}},
        "asgi": {"version": "3.0", "spec_version": "2.3"}, "subprotocols": [],
    }  # fmt: skip
    incoming = asyncio.Queue[dict[str, Any]]()
    incoming.put_nowait({"type": f"{kind}.{'request' if place.method else 'connect'}", "body": b"", "more_body": False})
    incoming.put_nowait({"type": f"{kind}.disconnect", "code": 1000})
    answer: list[tuple[int, dict[str, str]]] = []

    async def send(message: Any) -> None:
        if message["type"].endswith("response.start"):
            answer.append((message["status"], {k.decode(): v.decode() for k, v in message["headers"]}))
        elif message["type"] == "websocket.accept":
            answer.append((101, {}))
        elif message["type"] == "websocket.close" and not answer:
            answer.append((403, {}))  # before `accept`

    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            await app(scope, incoming.get, send)
    assert answer, f"{place} answered nothing"
    return answer[0]


async def statuses(apps: dict[str, FastAPI], places: list[Place], **headers: str) -> dict[Place, int]:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return {place: (await asked(apps[place.service], place, given))[0] for place in places}


def test_the_walk_finds_what_is_known_to_be_there(places: list[Place]) -> None:
    assert {place.service for place in places} == set(SERVICES)
    assert {
        Place("gateway", "", "/v1/stream"), Place("env server", "", "/v1/stream"),
        Place("gateway", "POST", "/v1/tickets"),
        Place("gateway", "", "/openenv/{env}/ws"), Place("gateway", "POST", "/mcp/{env}"),
        Place("reward", "POST", "/v1/scores"), Place("trainer", "GET", "/v1/run"),
        Place("rollout", "POST", "/v1/policy/versions"), Place("env server", "GET", "/play/{env}"),
    } <= set(places)  # fmt: skip
    assert any(place.path.startswith("/agentgym/") for place in places)
    assert not [place for place in places if "docs" in place.path], "FastAPI's pages load scripts of other people"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"origin": "https://evil.example"}, id="a page of another host"),
        pytest.param({"origin": "http://10.1.2.3"}, id="a page of this host on another port"),
        pytest.param({"origin": "http://localhost.evil.example"}, id="a page that is only named like this machine"),
        pytest.param({"origin": "null"}, id="a page without an origin"),
        pytest.param({"host": "evil.example"}, id="a name that was made to resolve to this machine"),
        pytest.param(
            {"host": "evil.example:8110", "origin": "http://evil.example:8110"}, id="a page under such a name"
        ),
        pytest.param({"host": "gym.example.org.evil.example"}, id="a name that begins like a listed one"),
        pytest.param({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, id="an image or script of a page"),
        pytest.param({"sec_fetch_site": "same-site", "sec_fetch_dest": "iframe"}, id="a frame of a page"),
    ],
)
async def test_no_foreign_page_reaches_anything_even_with_the_key(
    apps: dict[str, FastAPI], places: list[Place], headers: dict[str, str]
) -> None:
    found = await statuses(apps, places, authorization=f"Bearer {KEY}", **headers)

    assert {place: status for place, status in found.items() if status != 403} == {}


@pytest.mark.parametrize("key", ["", "Bearer", "Bearer another key", f"Bearer {KEY}x", KEY])
async def test_everything_else_needs_the_key(apps: dict[str, FastAPI], places: list[Place], key: str) -> None:
    found = await statuses(apps, places, authorization=key)

    without_a_key = {place.path for place, status in found.items() if status not in (401, 403)}
    assert without_a_key == WITHOUT_A_KEY


async def test_probes_and_scrapers_come_by_the_pods_address(apps: dict[str, FastAPI]) -> None:
    for name, app in apps.items():
        for host in ("10.1.2.3:8110", "[fd00::1]:8110", "localhost", "gym.example.org", "a.b.fleet:80"):
            assert (await asked(app, Place(name, "GET", "/healthz"), {"host": host}))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": LISTED},
        {"origin": "http://localhost:5173"},
        {"origin": "http://10.1.2.3:8110"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    ],
)
async def test_pages_that_may_call_do(apps: dict[str, FastAPI], headers: dict[str, str]) -> None:
    given = {"authorization": f"Bearer {KEY}", **headers}
    for name, path in {"trainer": "/v1/run", "env server": "/v1/load", "gateway": "/v1/environments"}.items():
        status, answer = await asked(apps[name], Place(name, "GET", path), given)

        assert status == 200
        assert answer.get("access-control-allow-origin") == (LISTED if headers.get("origin") == LISTED else None)
        assert "access-control-allow-credentials" not in answer


async def test_a_listed_page_may_ask_first_what_it_may_send(apps: dict[str, FastAPI]) -> None:
    question = {
        "origin": LISTED,
        "access-control-request-method": "POST",
        "access-control-request-private-network": "true",
    }
    for name, app in apps.items():
        status, answer = await asked(app, Place(name, "OPTIONS", "/v1/anything"), question)

        assert (status, answer["access-control-allow-origin"]) == (204, LISTED)
        assert "authorization" in answer["access-control-allow-headers"]
        assert answer["access-control-allow-private-network"] == "true"
        refused, unread = await asked(app, Place(name, "GET", "/v1/run"), {"origin": LISTED})
        assert refused in (401, 404)
        assert unread["access-control-allow-origin"] == LISTED, "the page reads why it was refused"


@pytest.mark.parametrize("settings", [EnvServerSettings, RewardSettings, RolloutSettings, TrainerSettings])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "reward.example"])  # noqa: S104
def test_whoever_listens_to_others_needs_a_key(settings: Any, host: str) -> None:
    model = {"model": "m"} if settings is RolloutSettings else {}
    prefix = settings.model_config["env_prefix"]

    with pytest.raises(ValueError, match=f"{prefix}API_KEY"):
        settings.model_validate({"host": host, **model})
    assert settings.model_validate({"host": host, "api_key": KEY, **model}).host == host
    assert settings.model_validate({"host": "localhost", **model}).api_key is None


@pytest.mark.parametrize("name", ["HOST", "host:80", "http://host", "*", "a.*.b", "", "a b"])
def test_a_host_that_no_request_can_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="allowed_hosts"):
        RewardSettings.model_validate({"allowed_hosts": (name,)})


@pytest.mark.parametrize("origin", ["*", "null", "play.example.org", "https://play.example.org/", "HTTPS://X"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ValueError, match="allowed_origins"):
        RewardSettings.model_validate({"allowed_origins": (origin,)})
