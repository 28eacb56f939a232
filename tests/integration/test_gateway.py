"""The session API through real gateways over real env servers."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import websockets
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_client.errors import (
    ActionTooLarge,
    DeadlinePassed,
    EnvironmentFull,
    EpisodeOver,
    ExpertUnavailable,
    PayloadTooLarge,
    ProblemError,
    StepOutOfOrder,
    Unauthorized,
    UnknownEnvironment,
    UnknownSession,
    UnknownTask,
    UpstreamTimeout,
    ValidationFailed,
)
from gymfleet_contracts.frames import MAX_FRAME_BYTES, ReplyFrame, RequestFrame, decode_reply, encode
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import OpenSession, Session, SessionStep, StepResult, ToolCall
from gymfleet_env_gateway.session_ids import SessionIds

from tests.fixtures import gateway_fleet, tally_environment
from tests.fixtures.gateway_fleet import SECRET, ServiceProcess

TALLY = str(Path(tally_environment.__file__))
MAZE = OpenSession(env="maze", task_index=0)
COUNTER = OpenSession(env="tally", task_index=0)


@dataclass(frozen=True)
class Running:
    """Two env servers with maze, one of them with tally too, and two gateways over both."""

    servers: tuple[ServiceProcess, ServiceProcess]
    gateways: tuple[ServiceProcess, ServiceProcess]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    logs = tmp_path_factory.mktemp("fleet")
    first = gateway_fleet.env_server(logs, "maze", "textcraft")
    second = gateway_fleet.env_server(logs, "maze", TALLY)
    gateway = gateway_fleet.gateway(logs, [first.url, second.url])
    other = gateway_fleet.gateway(logs, [second.url, first.url])
    with gateway_fleet.running(first, second, gateway, other):
        yield Running((first, second), (gateway, other))


@pytest.fixture
async def stream(running: Running) -> AsyncIterator[SessionStream]:
    async with SessionStream(running.gateways[0].url) as stream:
        yield stream


@pytest.fixture
async def rest(running: Running) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(running.gateways[0].url) as client:
        yield client


async def play_by_expert(stream: SessionStream, session: Session) -> StepResult:
    for index in range(100):
        move = await stream.expert(session.session_id)
        result = await stream.step(session.session_id, index, move.action)
        if result.terminated:
            return result
    raise AssertionError("the expert did not finish")


async def test_an_episode_is_played_to_success(stream: SessionStream) -> None:
    session = await stream.open(OpenSession(env="textcraft", task_index=3))

    result = await play_by_expert(stream, session)

    assert (result.score, result.reward) == (1.0, 1.0)
    assert session.task.task_id.endswith("train.3"), "the task is the one that was asked for"
    with pytest.raises(EpisodeOver):
        await stream.step(session.session_id, result.index + 1, "inventory")


async def test_environments_of_all_replicas_are_listed_once(rest: GatewayClient) -> None:
    specs = await rest.environments()

    assert [spec.name for spec in specs] == ["maze", "tally", "textcraft"]
    assert await rest.environment("maze") == specs[0]


async def test_an_unknown_environment_names_the_known_ones(rest: GatewayClient, stream: SessionStream) -> None:
    for call in (rest.open(OpenSession(env="chess", task_index=0)), rest.environment("chess")):
        with pytest.raises(UnknownEnvironment, match="maze, tally, textcraft"):
            await call
    with pytest.raises(UnknownEnvironment, match="maze, tally, textcraft"):
        await stream.open(OpenSession(env="chess", task_index=0))


async def test_new_sessions_go_to_the_least_loaded_replica(running: Running, tmp_path: Path) -> None:
    """Sessions of all gateways count: what the env servers say is what decides."""
    fresh = gateway_fleet.gateway(tmp_path, [server.url for server in running.servers])
    with gateway_fleet.running(fresh):
        async with SessionStream(fresh.url) as stream, httpx.AsyncClient(trust_env=False) as http:

            async def loads() -> list[int]:
                await asyncio.sleep(1.0)  # until the servers' figures and the gateway's view of them have settled
                answers = [await http.get(f"{server.url}/v1/load") for server in running.servers]
                counts = [[sum(owners.values()) for owners in a.json()["sessions"].values()] for a in answers]
                return [sum(count) for count in counts]

            before = await loads()
            missing = abs(before[0] - before[1])
            sessions = [await stream.open(MAZE) for _ in range(missing + 6)]
            after = await loads()
            assert abs(after[0] - after[1]) <= 1

            emptier = SessionIds(SECRET).read(sessions[-1].session_id, "local").replica
            closed = [s for s in sessions if SessionIds(SECRET).read(s.session_id, "local").replica == emptier][-3:]
            for session in closed:
                await stream.close(session.session_id)
            again = [(await stream.open(MAZE)).session_id for _ in closed]

    replicas = [SessionIds(SECRET).read(session_id, "local").replica for session_id in again]
    assert replicas.count(emptier) >= len(closed) - 1, "closing made room"


async def test_any_gateway_with_the_secret_routes_a_session(running: Running, stream: SessionStream) -> None:
    session = await stream.open(COUNTER)
    await stream.step(session.session_id, 0, "one")

    async with GatewayClient(running.gateways[1].url) as other:
        result = await other.step(session.session_id, 1, "two")
        assert (await other.get(session.session_id)).session_id == session.session_id

    assert result.observation == "2"


async def test_a_gateway_with_another_secret_knows_none_of_the_sessions(
    running: Running, stream: SessionStream, tmp_path: Path
) -> None:
    session = await stream.open(MAZE)

    foreign = gateway_fleet.gateway(tmp_path, [running.servers[0].url], secret="entirely another secret")
    with gateway_fleet.running(foreign):
        async with GatewayClient(foreign.url) as client:
            with pytest.raises(UnknownSession):
                await client.step(session.session_id, 0, "move up")


async def test_sessions_outlive_a_new_secret_where_the_previous_one_is_accepted(
    running: Running, stream: SessionStream, tmp_path: Path
) -> None:
    session = await stream.open(COUNTER)
    await stream.step(session.session_id, 0, "one")

    urls = [server.url for server in running.servers]
    rotated = gateway_fleet.gateway(tmp_path, urls, secret="entirely another secret", previous_secrets=f'["{SECRET}"]')
    with gateway_fleet.running(rotated):
        async with SessionStream(rotated.url) as after:
            assert (await after.step(session.session_id, 1, "two")).observation == "2"
            new = await after.open(COUNTER)
            assert (await after.step(new.session_id, 0, "one")).observation == "1"
            with pytest.raises(UnknownSession):
                await stream.step(new.session_id, 1, "two")
            for session_id in (session.session_id, new.session_id):
                await after.close(session_id)


async def test_the_env_servers_own_ids_and_forged_ones_are_unknown(rest: GatewayClient, stream: SessionStream) -> None:
    session = await stream.open(MAZE)
    ref = SessionIds(SECRET).read(session.session_id, "local")
    moved = SessionIds("entirely another secret").issue("maze", ref.replica, ref.upstream, "local")
    for forged in (ref.upstream, moved, session.session_id[:-1] + "!", "x", "a b?c#d"):
        for call in (rest.get, rest.close, stream.get, stream.close, stream.expert, stream.fork):
            with pytest.raises(UnknownSession):
                await call(forged)


async def test_answers_come_out_of_order(stream: SessionStream) -> None:
    slow, fast = await stream.open(COUNTER), await stream.open(MAZE)
    order: list[str] = []

    async def step(session: Session, action: str) -> None:
        await stream.step(session.session_id, 0, action)
        order.append(session.task.env)

    # The maze may live beside the slow session; a second one surely lives elsewhere or is opened first.
    if (
        SessionIds(SECRET).read(fast.session_id, "local").replica
        == SessionIds(SECRET).read(slow.session_id, "local").replica
    ):
        fast = await stream.open(OpenSession(env="textcraft", task_index=0))
    await asyncio.gather(step(slow, "sleep 500"), step(fast, "inventory"))

    assert order[-1] == "tally"


async def test_a_repeated_step_is_executed_once(stream: SessionStream, rest: GatewayClient) -> None:
    session_id = (await stream.open(COUNTER)).session_id
    calls = [stream.step(session_id, 0, "once") for _ in range(4)] + [
        rest.step(session_id, 0, "once") for _ in range(4)
    ]

    results = await asyncio.gather(*calls)

    assert {result.observation for result in results} == {"1"}
    assert (await stream.step(session_id, 1, "next")).observation == "2"
    with pytest.raises(StepOutOfOrder):
        await stream.step(session_id, 7, "too far")


async def test_an_index_that_was_played_with_another_action_is_refused(
    stream: SessionStream, rest: GatewayClient
) -> None:
    session_id = (await stream.open(COUNTER)).session_id
    await stream.step(session_id, 0, "once")

    for client in (stream, rest):
        with pytest.raises(StepOutOfOrder):
            await client.step(session_id, 0, "twice")
    items = [SessionStep(session_id=session_id, index=0, action=action) for action in ("twice", "once")]
    other, same = await rest.steps(items)

    assert isinstance(other, Problem)
    assert (other.status, other.type) == (409, "/problems/step-out-of-order")
    assert isinstance(same, StepResult)
    assert (await stream.get(session_id)).index == 1


async def test_a_batch_answers_each_item_in_its_place(rest: GatewayClient, stream: SessionStream) -> None:
    first, second = [(await stream.open(COUNTER)).session_id for _ in range(2)]
    items = [
        SessionStep(session_id=first, index=0, action="a"),
        SessionStep(session_id="forged", index=0, action="b"),
        SessionStep(session_id=second, index=5, action="c"),
        SessionStep(session_id=first, index=1, action="d"),
    ]

    results = await rest.steps(items)

    assert [r.type.rsplit("/", 1)[1] if isinstance(r, Problem) else r.observation for r in results] == [
        "1", "unknown-session", "step-out-of-order", "2",
    ]  # fmt: skip


async def test_children_of_a_fork_have_ids_of_their_own(stream: SessionStream, running: Running) -> None:
    parent = await stream.open(COUNTER)
    await stream.step(parent.session_id, 0, "one")

    children = await stream.fork(parent.session_id, 3)

    assert len({child.session_id for child in children} | {parent.session_id}) == 4
    assert [child.index for child in children] == [1, 1, 1]
    async with GatewayClient(running.gateways[1].url) as other:
        for child in children:
            assert (await other.step(child.session_id, 1, "two")).observation == "2"
    assert (await stream.step(parent.session_id, 1, "two")).observation == "2", "children leave the parent alone"


async def test_leases_are_passed_on(stream: SessionStream) -> None:
    session = await stream.open(OpenSession(env="maze", task_index=0, lease_s=1000))
    assert session.lease_s == 1000

    assert (await stream.renew(session.session_id, 0.2)).lease_s == 0.2

    async def watch() -> None:
        while True:
            await stream.get(session.session_id)  # looking does not renew
            await asyncio.sleep(0.1)

    with pytest.raises(UnknownSession, match="lease"):
        await asyncio.wait_for(watch(), 20)


async def test_a_closed_session_is_unknown(stream: SessionStream, rest: GatewayClient) -> None:
    session = await stream.open(MAZE)

    await stream.close(session.session_id)

    with pytest.raises(UnknownSession):
        await rest.step(session.session_id, 0, "move up")


async def test_problems_of_the_env_server_pass_through(stream: SessionStream, rest: GatewayClient) -> None:
    session_id = (await stream.open(COUNTER)).session_id
    with pytest.raises(ActionTooLarge):
        await stream.step(session_id, 0, "x" * 10_000)
    with pytest.raises(ExpertUnavailable):
        await rest.expert(session_id)
    with pytest.raises(UnknownTask):
        await stream.open(OpenSession(env="maze", task_id="no.such.task"))
    with pytest.raises(ValidationFailed):
        await stream.step(session_id, -1, "x")


async def test_problems_are_problem_documents(running: Running) -> None:
    async with httpx.AsyncClient(base_url=running.gateways[0].url, trust_env=False) as http:
        unknown = await http.get("/v1/sessions/forged")
        invalid = await http.post("/v1/sessions", json={"env": "maze"})
        large = await http.post("/v1/sessions", content=b" " * (17 * 1024 * 1024))

    assert [(r.status_code, r.headers["content-type"]) for r in (unknown, invalid, large)] == [
        (404, "application/problem+json"), (422, "application/problem+json"), (413, "application/problem+json"),
    ]  # fmt: skip


async def test_an_env_server_that_is_too_slow_is_a_timeout_and_the_step_can_be_asked_for_again(
    running: Running, tmp_path: Path
) -> None:
    hasty = gateway_fleet.gateway(tmp_path, [running.servers[1].url], step_timeout_s="0.2")
    with gateway_fleet.running(hasty):
        async with SessionStream(hasty.url) as stream, SessionStream(running.gateways[0].url) as patient:
            session = await stream.open(COUNTER)
            with pytest.raises(UpstreamTimeout):
                await stream.step(session.session_id, 0, "sleep 600")

            result = await patient.step(session.session_id, 0, "sleep 600")

    assert result.observation == "1", "executed once, and the result was kept"


async def test_a_call_has_a_deadline_of_its_own(stream: SessionStream, rest: GatewayClient) -> None:
    session = await stream.open(COUNTER)

    with pytest.raises(DeadlinePassed):
        await stream.step(session.session_id, 0, "sleep 400", timeout_s=0.05)
    with pytest.raises(DeadlinePassed):
        await rest.step(session.session_id, 0, "sleep 400", timeout_s=0.05)

    assert (await stream.step(session.session_id, 0, "sleep 400")).observation == "1"


async def test_a_wrong_frame_is_answered_and_harms_no_other_call(running: Running) -> None:
    url = running.gateways[0].url.replace("http", "ws") + "/v1/stream"
    async with websockets.connect(url, proxy=None) as socket:
        for frame in ("text", b"", b"\xff\xff", encode({"id": "x", "op": "get"}), encode({"id": 3, "opp": "get"})):
            await socket.send(frame)
            assert _problem(await socket.recv()) == (-1, "/problems/validation")
        await socket.send(encode(RequestFrame(7, "fly", "x")))
        assert _problem(await socket.recv()) == (7, "/problems/validation")
        await socket.send(encode(RequestFrame(8, "open", body={"env": 3})))
        assert _problem(await socket.recv()) == (8, "/problems/validation")
        await socket.send(encode(RequestFrame(9, "open", body={"env": "maze", "task_index": 0, "colour": "red"})))
        assert _problem(await socket.recv()) == (9, "/problems/validation")
        await socket.send(encode(RequestFrame(10, "open", body={"env": "maze", "task_index": 0})))
        assert _reply(await socket.recv()).ok["task"]["env"] == "maze"


async def test_a_call_that_no_frame_to_an_env_server_holds_is_refused(
    rest: GatewayClient, stream: SessionStream
) -> None:
    session = await stream.open(COUNTER)
    numbers = ToolCall(
        name="any", arguments={"numbers": [0.5] * (MAX_FRAME_BYTES // 8)}
    )  # 4 bytes of JSON each, here 9
    for call in (
        rest.step(session.session_id, 0, "x" * (MAX_FRAME_BYTES - 100), timeout_s=5),
        rest.tool_action(session.session_id, numbers, timeout_s=5),
    ):
        with pytest.raises(PayloadTooLarge):  # and the socket, which all callers share, stays open
            await call

    assert (await stream.step(session.session_id, 0, "x")).observation == "1"
    await stream.close(session.session_id)


async def test_a_session_opened_for_a_client_that_left_is_closed(running: Running, tmp_path: Path) -> None:
    server = gateway_fleet.env_server(tmp_path, TALLY, max_sessions="2")
    gateway = gateway_fleet.gateway(tmp_path, [server.url])
    with gateway_fleet.running(server, gateway):
        async with SessionStream(gateway.url) as stream:
            busy = await stream.open(COUNTER)
            step = asyncio.create_task(stream.step(busy.session_id, 0, "sleep 1000"))
            await asyncio.sleep(0.1)  # the only shard is busy: the next open waits behind it
            async with websockets.connect(gateway.url.replace("http", "ws") + "/v1/stream", proxy=None) as socket:
                await socket.send(encode(RequestFrame(1, "open", body={"env": "tally", "task_index": 1})))
                await asyncio.sleep(0.3)
            await step

            async def wait_for_a_slot() -> None:
                while True:
                    try:
                        await stream.open(COUNTER)
                    except EnvironmentFull:  # until the orphan is closed
                        await asyncio.sleep(0.1)
                    else:
                        return

            await asyncio.wait_for(wait_for_a_slot(), 20)


async def test_with_a_key_nobody_else_is_served(running: Running, tmp_path: Path) -> None:
    guarded = gateway_fleet.gateway(tmp_path, [running.servers[0].url], api_key="open sesame")
    with gateway_fleet.running(guarded):
        async with (
            GatewayClient(guarded.url, api_key="open sesame") as rest,
            SessionStream(guarded.url, api_key="open sesame") as stream,
            GatewayClient(guarded.url, api_key="open barley") as wrong,
        ):
            assert (await rest.get((await stream.open(MAZE)).session_id)).index == 0
            with pytest.raises(ProblemError, match="API key"):
                await wrong.environments()
            with pytest.raises(Unauthorized):
                await SessionStream(guarded.url).connect()
        async with httpx.AsyncClient(base_url=guarded.url, trust_env=False) as http:
            assert (await http.post("/agentgym/maze/maze/create")).status_code == 401


async def test_calls_are_counted_by_environment_and_outcome(running: Running, stream: SessionStream) -> None:
    session = await stream.open(MAZE)
    await stream.step(session.session_id, 0, "move up")
    with pytest.raises(StepOutOfOrder):
        await stream.step(session.session_id, 9, "move up")

    async with httpx.AsyncClient(base_url=running.gateways[0].url, trust_env=False) as http:
        text = (await http.get("/metrics")).text

    assert 'gymfleet_gateway_calls_total{env="maze",op="step",outcome="ok",tenant="local"}' in text
    assert 'gymfleet_gateway_calls_total{env="maze",op="step",outcome="step-out-of-order",tenant="local"}' in text
    assert 'gymfleet_gateway_call_seconds_count{env="maze",op="step"}' in text
    assert 'gymfleet_gateway_open_sessions{env="maze",tenant="local"}' in text
    assert 'gymfleet_gateway_free_slots{env="maze"}' in text
    assert 'gymfleet_gateway_replicas{state="up"} 2.0' in text


def _reply(data: str | bytes) -> ReplyFrame:
    assert isinstance(data, bytes)
    return decode_reply(data)


def _problem(data: str | bytes) -> tuple[int, str]:
    reply = _reply(data)
    assert reply.problem is not None
    return reply.id, reply.problem["type"]
