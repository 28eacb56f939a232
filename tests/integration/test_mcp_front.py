"""The official MCP client, unmodified and in both protocol generations, plays through the gateway."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_contracts.keys import key_digest, new_key
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from tests.fixtures import gateway_fleet, peers
from tests.fixtures.gateway_fleet import ServiceProcess
from tests.fixtures.levels_environment import COUNTS

ENVIRONMENTS = ("textcraft", "babyai", "maze", "wordle")
LEVELS = "tests.fixtures.levels_environment:Levels"
GENERATIONS = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28", "auto": "2026-07-28"}
TOOLS = ["close", "fork", "renew", "reset", "state", "step"]
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@dataclass(frozen=True)
class Fleet:
    """Two gateways with one secret over one env server."""

    server: ServiceProcess
    gateways: tuple[ServiceProcess, ServiceProcess]

    @property
    def url(self) -> str:
        return self.gateways[0].url


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("mcp")
    server = gateway_fleet.env_server(directory, *ENVIRONMENTS, LEVELS)
    gateways = (gateway_fleet.gateway(directory, [server.url]), gateway_fleet.gateway(directory, [server.url]))
    with gateway_fleet.running(server, *gateways):
        yield Fleet(server, gateways)


class Player:
    """A connected client; every call returns the tool's structured answer, or the problem of its error."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        text: dict[str, Any] = json.loads(result.content[0].text)  # type: ignore[union-attr]
        assert text == result.structured_content, "for clients that read only one of them"
        return text

    async def fail(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error
        assert result.structured_content is None, "a strict client would hold it against the tool's output schema"
        problem: dict[str, Any] = json.loads(result.content[0].text)  # type: ignore[union-attr]
        return problem


@asynccontextmanager
async def connected(url: str, mode: str, *, key: str | None = None) -> AsyncIterator[Player]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60, trust_env=False) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield Player(client)


@pytest.fixture(params=list(GENERATIONS))
def mode(request: pytest.FixtureRequest) -> str:
    generation: str = request.param
    return generation


async def test_each_environment_says_its_rules_and_lists_its_tools(fleet: Fleet, mode: str) -> None:
    for env in ENVIRONMENTS:
        async with connected(f"{fleet.url}/mcp/{env}", mode) as player:
            tools = {tool.name: tool for tool in (await player.client.list_tools()).tools}
            with SyncGatewayClient(fleet.url) as native:
                spec = native.environment(env)

            assert player.client.protocol_version == GENERATIONS[mode]
            assert sorted(tools) == TOOLS
            if mode != "2026-07-28":  # a pinned client asks for nothing before its first call
                assert player.client.instructions == spec.instructions
                assert player.client.server_info is not None
                assert player.client.server_info.name == f"gymfleet-{env}"
            step = tools["step"].input_schema
            assert step["required"] == ["session_id", "index", "action"]
            assert "stored result" in step["properties"]["index"]["description"]
            assert not {"env", "owner", "recoveries", "record_replies"} & set(tools["reset"].input_schema["properties"])
            for tool in tools.values():
                assert all("description" in argument for argument in tool.input_schema["properties"].values())


@pytest.mark.parametrize("env", ENVIRONMENTS)
async def test_an_episode_is_won(fleet: Fleet, mode: str, env: str) -> None:
    with SyncGatewayClient(fleet.url) as native:
        async with connected(f"{fleet.url}/mcp/{env}", mode) as player:
            opened = await player.call("reset", task_index=3)
            session_id = opened["session_id"]
            assert opened["task"]["env"] == env
            assert (opened["index"], opened["observation"] != "") == (0, True)
            assert opened["instructions"] == native.environment(env).instructions
            result: dict[str, Any] = {}
            while not (result.get("terminated") or result.get("truncated")):
                action = native.expert(session_id).action
                index = result.get("index", -1) + 1
                result = await player.call("step", session_id=session_id, index=index, action=action)

            assert result["score"] == 1.0
            assert (await player.call("state", session_id=session_id))["terminated"]
            over = await player.fail("step", session_id=session_id, index=result["index"] + 1, action="x")
            assert over["type"] == "/problems/episode-over"
            assert await player.call("close", session_id=session_id) == {"closed": True}


async def test_a_repeated_step_returns_the_stored_result_and_another_action_or_a_gap_is_an_error(
    fleet: Fleet, mode: str
) -> None:
    async with connected(f"{fleet.url}/mcp/maze", mode) as player:
        lease = (await player.call("reset", task_index=0))["session_id"]

        first = await player.call("step", session_id=lease, index=0, action="move up")
        again = await player.call("step", session_id=lease, index=0, action="move up")
        other = await player.fail("step", session_id=lease, index=0, action="move down")
        gap = await player.fail("step", session_id=lease, index=2, action="move up")

        assert again == first
        for refused in (other, gap):
            assert (refused["type"], refused["status"]) == ("/problems/step-out-of-order", 409)
        assert (await player.call("state", session_id=lease))["index"] == 1, "neither was executed"


async def test_two_leases_of_one_client_do_not_touch_each_other(fleet: Fleet, mode: str) -> None:
    async with connected(f"{fleet.url}/mcp/wordle", mode) as player:
        one, two = [await player.call("reset", task_index=index) for index in (0, 1)]

        await player.call("step", session_id=one["session_id"], index=0, action="crane")

        assert one["session_id"] != two["session_id"]
        assert one["task"]["task_id"] != two["task"]["task_id"]
        assert (await player.call("state", session_id=two["session_id"]))["index"] == 0


async def test_any_gateway_replica_serves_any_request(fleet: Fleet, mode: str) -> None:
    here, there = (f"{gateway.url}/mcp/maze" for gateway in fleet.gateways)
    async with connected(here, mode) as player, connected(there, mode) as other:
        lease = (await player.call("reset", task_index=0))["session_id"]

        first = await player.call("step", session_id=lease, index=0, action="move up")

        assert await other.call("step", session_id=lease, index=0, action="move up") == first
        assert (await other.call("step", session_id=lease, index=1, action="move up"))["index"] == 1
        assert (await player.call("state", session_id=lease))["index"] == 2


async def test_one_clients_requests_may_each_land_on_another_replica(fleet: Fleet, mode: str) -> None:
    """What a load balancer without affinity does: the second replica never saw `initialize`."""
    here, there = (httpx.URL(gateway.url) for gateway in fleet.gateways)
    targets = [here, there]

    async def alternate(request: httpx2.Request) -> None:
        targets.reverse()
        request.url = request.url.copy_with(port=targets[0].port)

    async with (
        httpx2.AsyncClient(timeout=60, trust_env=False, event_hooks={"request": [alternate]}) as http,
        Client(streamable_http_client(f"{here}/mcp/maze", http_client=http), mode=mode) as client,
    ):
        player = Player(client)
        lease = (await player.call("reset", task_index=0))["session_id"]
        for index in range(4):
            assert (await player.call("step", session_id=lease, index=index, action="move up"))["index"] == index


async def test_fork_and_renew(fleet: Fleet, mode: str) -> None:
    async with connected(f"{fleet.url}/mcp/textcraft", mode) as player:
        opened = await player.call("reset", task_index=0, lease_s=60)
        lease = opened["session_id"]
        await player.call("step", session_id=lease, index=0, action="inventory")

        children = (await player.call("fork", session_id=lease, count=2))["sessions"]
        renewed = await player.call("renew", session_id=lease, lease_s=120)

        assert opened["lease_s"] == 60
        assert renewed["expires_in_s"] > 60
        assert len({lease, *(child["session_id"] for child in children)}) == 3
        assert [child["index"] for child in children] == [1, 1]


async def test_a_task_is_drawn_of_a_level_with_fewer_tasks_too(fleet: Fleet) -> None:
    async with connected(f"{fleet.url}/mcp/levels", "auto") as player:
        drawn = [(await player.call("reset", level="hard", seed=seed))["observation"] for seed in (1, 2, 3, 4, 1)]
        unknown = await player.fail("reset", level="hard", task_index=40)

    assert set(drawn) <= {f"hard-{number}" for number in range(COUNTS["hard"])}
    assert drawn[0] == drawn[-1]
    assert unknown["type"] == "/problems/unknown-task", "no other task takes the place of one that is named"


async def test_without_a_selector_a_task_is_drawn_and_a_seed_repeats_it(fleet: Fleet) -> None:
    async with connected(f"{fleet.url}/mcp/wordle", "auto") as player:
        seeded = [(await player.call("reset", seed=7))["task"]["task_id"] for _ in range(2)]
        free = {(await player.call("reset", task_id=None))["task"]["task_id"] for _ in range(8)}
        test = await player.call("reset", split="test")

        assert seeded[0] == seeded[1]
        assert len(free) > 1
        assert test["task"]["split"] == "test"


@pytest.mark.parametrize(
    ("tool", "arguments", "problem", "named"),
    [
        ("step", {"session_id": "maze.x.y.z", "index": 0, "action": "a"}, "unknown-session", "not issued here"),
        ("state", {"session_id": "x" * 300}, "unknown-session", "not issued here"),
        ("state", {"session_id": 5}, "validation", "session_id"),
        ("state", {"session_id": "x", "surplus": 0}, "validation", "surplus"),
        ("close", {"session_id": "x", "index": 0}, "validation", "index"),
        ("step", {"session_id": "x", "action": "a"}, "validation", "index"),
        ("step", {"session_id": "x", "index": -1, "action": "a"}, "validation", "index"),
        ("step", {"session_id": "x", "index": 0, "action": "a", "reward": 1}, "validation", "reward"),
        ("fork", {"session_id": "x", "count": 10_000}, "validation", "count"),
        ("reset", {"task_index": 0, "task_id": "x"}, "validation", "exactly one"),
        ("reset", {"env": "wordle", "task_index": 0}, "validation", "env"),
        ("reset", {"owner": "somebody", "task_index": 0}, "validation", "owner"),
        ("reset", {"split": "all"}, "validation", "split"),
        ("reset", {"seed": "x"}, "validation", "seed"),
        ("reset", {"task_index": 10**9}, "unknown-task", "outside"),
        ("reset", {"task_index": 0, "level": "impossible"}, "unknown-task", "level"),
    ],
)
async def test_a_mistake_is_a_tool_error_that_names_it(
    fleet: Fleet, tool: str, arguments: dict[str, Any], problem: str, named: str
) -> None:
    async with connected(f"{fleet.url}/mcp/maze", "auto") as player:
        error = await player.fail(tool, **arguments)

        assert error["type"] == f"/problems/{problem}"
        assert named in error["detail"]


async def test_an_unknown_tool_is_refused(fleet: Fleet, mode: str) -> None:
    async with connected(f"{fleet.url}/mcp/maze", mode) as player:
        with pytest.raises(MCPError, match="known: reset"):
            await player.client.call_tool("teleport", {})


def test_what_is_not_a_message_is_a_problem_or_an_rpc_error(fleet: Fleet) -> None:
    def post(path: str, content: str, **headers: str) -> httpx.Response:
        return httpx.post(fleet.url + path, content=content, headers=HEADERS | headers, timeout=60, trust_env=False)

    ping = '{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
    unknown = post("/mcp/chess", ping)
    too_large = post("/mcp/maze", " " * 17_000_000)

    assert (unknown.status_code, unknown.json()["type"]) == (404, "/problems/unknown-environment")
    assert (too_large.status_code, too_large.json()["type"]) == (413, "/problems/payload-too-large")
    assert post("/mcp/maze", "{").json()["error"]["code"] == -32700
    assert post("/mcp/maze", "[" * 100_000).status_code == 400
    assert post("/mcp/maze", ping).json()["result"] == {}
    assert post("/mcp/maze", ping, **{"mcp-session-id": "of-another-server"}).json()["result"] == {}
    meta = {"io.modelcontextprotocol/protocolVersion": "2099-01-01", "io.modelcontextprotocol/clientCapabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {"mcp-protocol-version": "2099-01-01", "mcp-method": "tools/list"}
    future = post("/mcp/maze", json.dumps(body), **headers)
    assert (future.status_code, future.json()["error"]["code"]) == (400, -32022)
    assert future.json()["error"]["data"]["supported"]
    for method in ("GET", "DELETE"):
        refused = httpx.request(method, f"{fleet.url}/mcp/maze", headers=HEADERS, timeout=60, trust_env=False)
        assert refused.status_code == 405, "no stream is held open, and there is no session to end"


def test_pages_of_other_hosts_are_refused(fleet: Fleet) -> None:
    def status(**headers: str) -> int:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        answer = httpx.post(f"{fleet.url}/mcp/maze", json=body, headers=HEADERS | headers, timeout=60, trust_env=False)
        return answer.status_code

    assert status(host="10.1.2.3:8200") == 200
    assert status(host="gym.example.org") == 403, "a name that the operator has not listed"
    assert status(origin="http://localhost:6274") == 200
    assert status(origin="http://evil.example", host="evil.example") == 403
    assert status(origin="null") == 403


async def test_a_key_is_asked_for(fleet: Fleet, tmp_path: Path, mode: str) -> None:
    gateway = gateway_fleet.gateway(tmp_path, [fleet.server.url], api_key="a key that only these tests know")
    with gateway_fleet.running(gateway):
        url = f"{gateway.url}/mcp/maze"
        async with connected(url, mode, key="a key that only these tests know") as player:
            assert (await player.call("reset", task_index=0))["index"] == 0
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as stranger:
            refused = await stranger.post(url, json={}, headers=HEADERS)

    assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")


async def test_tenants_do_not_see_each_others_sessions_and_hear_of_their_limits(
    fleet: Fleet, tmp_path: Path, mode: str
) -> None:
    keys = {name: new_key(name) for name in ("alice", "bob")}
    entries = [
        f'[tenants.{name}]\nsteps_per_s = 0.001\n[[tenants.{name}.keys]]\nid = "{name}"\nsha256 = "{key_digest(key)}"\n'
        for name, key in keys.items()
    ]
    (tmp_path / "tenants.toml").write_text("\n".join(entries))
    gateway = gateway_fleet.gateway(tmp_path, [fleet.server.url], tenants=str(tmp_path / "tenants.toml"))
    with gateway_fleet.running(gateway):
        url = f"{gateway.url}/mcp/maze"
        async with connected(url, mode, key=keys["alice"]) as alice, connected(url, mode, key=keys["bob"]) as bob:
            lease = (await alice.call("reset", task_index=0))["session_id"]
            for tool in ("state", "close", "fork"):
                assert (await bob.fail(tool, session_id=lease))["type"] == "/problems/unknown-session"
            index, refused = 0, None
            while refused is None:
                result = await alice.client.call_tool("step", {"session_id": lease, "index": index, "action": "x"})
                refused = json.loads(result.content[0].text) if result.is_error else None  # type: ignore[union-attr]
                index += 1
            assert (await alice.call("state", session_id=lease))["index"] == index - 1, "it was not executed"

    assert (refused["type"], refused["status"]) == ("/problems/rate-limited", 429)
    assert refused["retry_after_s"] > 0


async def test_the_death_of_an_env_server_is_no_observation(tmp_path: Path, mode: str) -> None:
    server = gateway_fleet.env_server(tmp_path, "maze")
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway):
        async with connected(f"{gateway.url}/mcp/maze", mode) as player:
            lease = (await player.call("reset", task_index=0))["session_id"]
            server.kill()

            lost = await player.fail("step", session_id=lease, index=0, action="move up")
            full = await player.fail("reset", task_index=0)

    assert (lost["type"], lost["status"]) == ("/problems/session-lost", 410)
    assert (full["type"], full["retry_after_s"]) == ("/problems/unavailable", 1)


def test_the_front_can_be_switched_off(fleet: Fleet, tmp_path: Path) -> None:
    gateway = gateway_fleet.gateway(tmp_path, [fleet.server.url], mcp="false")
    with gateway_fleet.running(gateway):
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        answer = httpx.post(f"{gateway.url}/mcp/maze", json=body, headers=HEADERS, timeout=60, trust_env=False)

    assert answer.status_code == 404


@pytest.mark.peers
def test_the_client_of_the_1_line_plays(fleet: Fleet) -> None:
    seen = peers.run("mcp_legacy_client", *(gateway.url for gateway in fleet.gateways), "maze")

    assert seen["version"].startswith("1.")
    assert seen["protocol"] == "2025-11-25"
    assert seen["transport_session"] is None, "so that any replica can answer"
    assert seen["tools"] == TOOLS
    assert "maze" in seen["instructions"].lower()
    assert all(not answer["error"] and answer["structured"] == answer["text"] for answer in seen["opened"])
    assert seen["step"]["structured"]["action_valid"] is False
    assert seen["step_repeated_elsewhere"] == seen["step"]
    assert (seen["gap"]["error"], seen["gap"]["text"]["type"]) == (True, "/problems/step-out-of-order")
    assert seen["other_lease"]["structured"]["index"] == 0
    assert [answer["structured"] for answer in seen["closed"]] == [{"closed": True}] * 2
    assert (seen["after_close"]["error"], seen["after_close"]["text"]["type"]) == (True, "/problems/unknown-session")
