"""Tenants, keys, limits and the queue, through a real gateway over a real env server."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websockets
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_client.errors import (
    ActionTooLarge,
    EnvironmentFull,
    Forbidden,
    PayloadTooLarge,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
    UnknownEnvironment,
    UnknownSession,
)
from gymfleet_contracts.frames import MAX_FRAME_BYTES, RequestFrame, encode
from gymfleet_contracts.keys import key_digest, new_key
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import OpenSession, SessionStep

from tests.fixtures import gateway_fleet, tally_environment
from tests.fixtures.gateway_fleet import ServiceProcess

TALLY = str(Path(tally_environment.__file__))
COUNTER = OpenSession(env="tally", task_index=0)
SLOTS = 8
MAX_BODY_BYTES = 100_000
KEYS = {name: new_key(name) for name in ("light", "heavy", "small", "slow", "mazes", "reader")}
LIMITS = {
    "light": "weight = 1",
    "heavy": "weight = 3",
    "small": "max_sessions = 2",
    "slow": "steps_per_s = 5",
    "mazes": 'environments = ["maze"]',
    "reader": "",
}


def tenants_file(keys: dict[str, str]) -> str:
    return "\n".join(
        f'[tenants.{name}]\n{LIMITS[name]}\n[[tenants.{name}.keys]]\nid = "{name}"\nsha256 = "{key_digest(key)}"\n'
        f'scopes = ["{"read" if name == "reader" else "play"}"]\n'
        for name, key in keys.items()
    )


@dataclass(frozen=True)
class Running:
    server: ServiceProcess
    gateway: ServiceProcess
    tenants: Path

    def rest(self, tenant: str) -> GatewayClient:
        return GatewayClient(self.gateway.url, api_key=KEYS[tenant])

    def stream(self, tenant: str) -> SessionStream:
        return SessionStream(self.gateway.url, api_key=KEYS[tenant])


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("admission")
    tenants = directory / "tenants.toml"
    tenants.write_text(tenants_file(KEYS))
    server = gateway_fleet.env_server(directory, TALLY, "maze", max_sessions=str(SLOTS))
    gateway = gateway_fleet.gateway(
        directory, [server.url], tenants=str(tenants), max_body_bytes=str(MAX_BODY_BYTES), queue_timeout_s="20"
    )
    with gateway_fleet.running(server, gateway):
        yield Running(server, gateway, tenants)


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.gateway.url, trust_env=False) as http:
        yield http


async def close(client: SessionStream | GatewayClient, *session_ids: str) -> None:
    for session_id in session_ids:
        await client.close(session_id)


async def in_turn(calls: Iterator[Coroutine[None, None, object]]) -> None:
    for call in calls:
        await call


async def test_without_a_valid_key_nothing_is_served(running: Running, http: httpx.AsyncClient) -> None:
    for headers in ({}, {"Authorization": "Bearer " + new_key("light")}, {"Authorization": "Basic eDp5"}):
        for path in ("/v1/environments", "/v1/sessions/x"):
            response = await http.get(path, headers=headers)

            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
            assert response.json()["type"] == "/problems/unauthorized"
    with pytest.raises(Unauthorized):
        await SessionStream(running.gateway.url, api_key="wrong").connect()
    assert (await http.get("/healthz")).is_success


async def test_a_key_in_the_urls_userinfo_is_as_good(running: Running) -> None:
    url = f"http://any:{KEYS['light']}@{running.gateway.url.removeprefix('http://')}"
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert (await http.get("/v1/environments")).is_success
        created = await http.post("/agentgym/maze/maze/create")
        assert created.status_code == 200
        assert isinstance(created.json()["id"], int)
    async with GatewayClient(url) as rest, SessionStream(url) as stream:
        session = await stream.open(COUNTER)
        await rest.close(session.session_id)


async def test_a_scope_and_a_list_of_environments_are_enforced(running: Running) -> None:
    async with running.rest("reader") as reader, running.rest("mazes") as mazes:
        assert [spec.name for spec in await reader.environments()] == ["maze", "tally"]
        with pytest.raises(Forbidden, match="scope 'play'"):
            await reader.open(COUNTER)
        with pytest.raises(Forbidden):
            await running.stream("reader").connect()

        assert [spec.name for spec in await mazes.environments()] == ["maze"]
        with pytest.raises(Forbidden, match="may not play tally"):
            await mazes.open(COUNTER)
        session = await mazes.open(OpenSession(env="maze", task_index=0))
        await mazes.close(session.session_id)


async def test_a_session_is_its_tenants_alone(running: Running) -> None:
    async with running.rest("light") as light, running.stream("heavy") as heavy:
        session = await light.open(COUNTER)

        for call in (heavy.get, heavy.close, heavy.fork):
            with pytest.raises(UnknownSession):
                await call(session.session_id)
        with pytest.raises(UnknownSession):
            await heavy.step(session.session_id, 0, "x")

        assert (await light.step(session.session_id, 0, "x")).observation == "1"
        await light.close(session.session_id)


async def test_keys_rotate_without_a_restart(running: Running) -> None:
    fresh = new_key("light")
    old, new = running.rest("light"), GatewayClient(running.gateway.url, api_key=fresh)
    async with old, new, running.stream("light") as socket:
        assert await old.environments()
        session = await socket.open(COUNTER)
        try:
            running.tenants.write_text(tenants_file({**KEYS, "light": fresh}))
            deadline = time.monotonic() + 10
            while True:
                try:
                    assert await new.environments()
                    break
                except Unauthorized:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.1)
            with pytest.raises(Unauthorized):
                await old.environments()
            with pytest.raises(Unauthorized):
                await socket.step(session.session_id, 0, "x")  # also on a socket that was open before
            assert (await new.step(session.session_id, 0, "x")).observation == "1"
            await new.close(session.session_id)
        finally:
            running.tenants.write_text(tenants_file(KEYS))
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                assert await old.environments()
                break
            except Unauthorized:
                await asyncio.sleep(0.1)


async def test_an_open_waits_for_a_slot_and_gets_it(running: Running) -> None:
    async with running.stream("light") as stream:
        sessions = [await stream.open(COUNTER) for _ in range(SLOTS)]
        waiting = asyncio.create_task(stream.open(COUNTER))
        await asyncio.sleep(0.3)
        assert not waiting.done()

        await stream.close(sessions.pop().session_id)

        sessions.append(await asyncio.wait_for(waiting, 5))
        await close(stream, *(session.session_id for session in sessions))


async def test_who_does_not_want_to_wait_is_told_when_to_come_again(running: Running, http: httpx.AsyncClient) -> None:
    impatient = COUNTER.model_copy(update={"wait_s": 0.05})
    async with running.stream("light") as stream:
        sessions = [await stream.open(COUNTER) for _ in range(SLOTS)]
        with pytest.raises(EnvironmentFull) as caught:
            await stream.open(impatient, timeout_s=1.0)
        response = await http.post(
            "/v1/sessions",
            content=impatient.model_dump_json(exclude_none=True),
            headers={"Authorization": f"Bearer {KEYS['light']}", "content-type": "application/json"},
        )
        await close(stream, *(session.session_id for session in sessions))

    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s >= 1
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= response.json()["retry_after_s"]


async def test_slots_are_shared_by_weight(running: Running) -> None:
    """Both want all 8 slots all the time: 2 and 6 settle, and so do the finished episodes of one length."""
    async with running.stream("light") as light, running.stream("heavy") as heavy:
        streams = {"light": light, "heavy": heavy}
        finished: Counter[str] = Counter()
        stop = asyncio.Event()

        async def play(tenant: str) -> None:
            while not stop.is_set():
                session = await streams[tenant].open(COUNTER)
                await asyncio.sleep(0.02)
                await streams[tenant].close(session.session_id)
                finished[tenant] += 1
                if finished.total() >= 400:
                    stop.set()

        await asyncio.gather(*(play(tenant) for tenant in streams for _ in range(2 * SLOTS)))

    assert finished["heavy"] / finished.total() == pytest.approx(0.75, abs=0.06)


async def test_a_quota_is_told_and_closing_makes_room(running: Running) -> None:
    async with running.rest("small") as small:
        sessions = [await small.open(COUNTER) for _ in range(2)]
        with pytest.raises(QuotaExceeded, match="may have 2") as caught:
            await small.open(COUNTER, timeout_s=0.5)
        assert caught.value.retry_after_s == 1.0

        waiting = asyncio.create_task(small.open(COUNTER, timeout_s=10.0))
        await small.close(sessions.pop().session_id)

        sessions.append(await waiting)  # the client came again by itself
        await close(small, *(session.session_id for session in sessions))


async def test_a_rate_is_kept_and_no_step_is_lost(running: Running) -> None:
    async with running.stream("slow") as stream:
        session = await stream.open(COUNTER)
        steps = (stream.step(session.session_id, index, "x", timeout_s=0.1) for index in range(20))
        with pytest.raises(RateLimited, match="5 times per second"):
            await in_turn(steps)
        step = (await stream.get(session.session_id)).index

        started = time.monotonic()
        results = [await stream.step(session.session_id, step + number, "x") for number in range(5)]

        assert [result.observation for result in results] == [str(step + number + 1) for number in range(5)]
        assert time.monotonic() - started > 0.5, "five more at 5/s, with at most the rest of the bucket at once"
        await stream.close(session.session_id)


async def test_an_action_over_the_limit_is_refused_and_the_session_goes_on(running: Running) -> None:
    large = "x" * 5000
    async with running.rest("light") as rest, running.stream("light") as stream:
        session = await rest.open(COUNTER)
        for client in (rest, stream):
            with pytest.raises(ActionTooLarge):
                await client.step(session.session_id, 0, large)
        too_large = await rest.steps([SessionStep(session_id=session.session_id, index=0, action=large)])
        await rest.steps([SessionStep(session_id=session.session_id, index=0, action="x")])

        assert isinstance(too_large[0], Problem)
        assert (too_large[0].type, too_large[0].status) == ("/problems/action-too-large", 413)
        assert (await stream.step(session.session_id, 1, "x")).observation == "2"
        await rest.close(session.session_id)


async def test_a_body_over_the_limit_is_refused(running: Running) -> None:
    async with running.rest("light") as rest:
        session = await rest.open(COUNTER)
        with pytest.raises(PayloadTooLarge, match=str(MAX_BODY_BYTES)):
            await rest.step(session.session_id, 0, "x" * MAX_BODY_BYTES)
        with pytest.raises(PayloadTooLarge):
            await rest.steps(
                [SessionStep(session_id=session.session_id, index=i, action="x" * 900) for i in range(120)]
            )
        assert (await rest.step(session.session_id, 0, "x")).observation == "1"
        await rest.close(session.session_id)


async def test_a_frame_over_the_limit_ends_its_socket_alone(running: Running) -> None:
    url = running.gateway.url.replace("http", "ws") + "/v1/stream"
    headers = {"Authorization": f"Bearer {KEYS['light']}"}
    async with running.stream("light") as other:
        session = await other.open(COUNTER)
        async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
            body = {"index": 0, "action": "x" * MAX_FRAME_BYTES}
            with contextlib.suppress(websockets.ConnectionClosed):  # it may hang up in the middle
                await socket.send(encode(RequestFrame(1, "step", session.session_id, body)))
            with pytest.raises(websockets.ConnectionClosed):
                await socket.recv()

        assert (await other.step(session.session_id, 0, "x")).observation == "1"
        await other.close(session.session_id)


async def test_metrics_name_tenants_and_no_callers_text(running: Running, http: httpx.AsyncClient) -> None:
    async with running.rest("light") as rest, running.stream("heavy") as stream:
        session = await stream.open(COUNTER)
        for client in (rest, stream):
            with pytest.raises(UnknownEnvironment):
                await client.open(OpenSession(env="callers_text", task_index=0))
        with pytest.raises(UnknownSession):
            await rest.get("callers_text.x.y.z")
        text = (await http.get("/metrics")).text
        await stream.close(session.session_id)

    assert 'gymfleet_gateway_calls_total{env="tally",op="open",outcome="ok",tenant="heavy"}' in text
    assert 'gymfleet_gateway_open_sessions{env="tally",tenant="heavy"} 1.0' in text
    assert 'gymfleet_gateway_queue_length{env="tally"} 0.0' in text
    assert 'gymfleet_gateway_queue_wait_seconds_count{env="tally"}' in text
    assert "callers_text" not in text
    assert "gf_" not in running.gateway.log()


def test_a_gateway_for_others_without_keys_does_not_start(tmp_path: Path) -> None:
    gateway = gateway_fleet.gateway(tmp_path, ["http://127.0.0.1:9"], host="0.0.0.0")  # noqa: S104
    with pytest.raises(AssertionError, match="did not become ready"), gateway_fleet.running(gateway):
        pass

    lines = gateway.log().splitlines()
    assert len(lines) == 1
    assert "gymfleet keys new --tenant NAME" in lines[0]
