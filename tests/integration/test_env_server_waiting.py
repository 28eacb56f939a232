"""A server of an environment that waits, and of one that does not, in one shard: nobody waits for anybody else."""

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gymfleet_client import SessionStream
from gymfleet_client.errors import SessionLost, StepOutOfOrder, UnknownSession
from gymfleet_contracts.session import OpenSession

from benchmarks.processes import cpu_seconds
from tests.conformance.env_server import COMMAND, EnvServer
from tests.fixtures.waiting_environment import wait_for

ROOT = Path(__file__).parents[1]
WAITING = str(ROOT / "fixtures" / "waiting_environment.py")
PLAIN = str(ROOT / "conformance" / "troublesome_env.py")
NUM_THREADS = 4
OPENING = OpenSession(env="waiting", task_index=0)


class Caller:
    """The session API over HTTP."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=40)

    def open(self, env: str = "waiting", **fields: Any) -> str:
        response = self.http.post("/v1/sessions", json={"env": env, "task_index": 0, **fields})
        assert response.status_code == 201, response.text
        session_id: str = response.json()["session_id"]
        return session_id

    def step(self, session_id: str, index: int, action: str) -> dict[str, Any]:
        response = self.http.post(f"/v1/sessions/{session_id}/steps", json={"index": index, "action": action})
        answer: dict[str, Any] = {"status": response.status_code, **response.json()}
        return answer

    def close(self, *session_ids: str) -> None:
        for session_id in session_ids:
            assert self.http.delete(f"/v1/sessions/{session_id}").status_code == 204

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the environment writes of each close."""
    return tmp_path_factory.mktemp("closings") / "closed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, closed: Path) -> Iterator[EnvServer]:
    options = json.dumps({"waiting": {"closed": str(closed)}})
    directory = tmp_path_factory.mktemp("server")
    with EnvServer(directory, PLAIN, WAITING, options=options, threads=NUM_THREADS) as server:
        yield server


@pytest.fixture
def caller(server: EnvServer) -> Iterator[Caller]:
    caller = Caller(server.url)
    with caller.http:
        yield caller


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


def test_sessions_wait_for_each_other_in_one_shard(caller: Caller) -> None:
    ids = [caller.open() for _ in range(NUM_THREADS)]

    results = caller.http.post(
        "/v1/steps", json=[{"session_id": each, "index": 0, "action": f"meet here {NUM_THREADS}"} for each in ids]
    ).json()

    assert [result.get("observation") for result in results] == ["meet"] * NUM_THREADS
    assert len({result["info"]["thread"] for result in results}) == NUM_THREADS
    assert len({result["info"]["pid"] for result in results}) == 1
    caller.close(*ids)


def test_nobody_else_is_held_up_when_every_thread_waits(
    caller: Caller, background: ThreadPoolExecutor, tmp_path: Path
) -> None:
    ids = [caller.open() for _ in range(NUM_THREADS)]
    plain = caller.open("troublesome")
    gate = tmp_path / "gate"
    meeting = f"meet {tmp_path.name} {NUM_THREADS}"
    assert all(future.result()["index"] == 0 for future in [background.submit(caller.step, i, 0, meeting) for i in ids])

    waiting = [background.submit(caller.step, session_id, 1, f"wait {gate}") for session_id in ids]
    until(lambda: caller.http.get(f"/v1/sessions/{plain}").status_code == 200)
    for index in range(20):
        assert caller.step(plain, index, "go")["index"] == index
    assert caller.http.get("/readyz").status_code == 200, "it probes in a thread of its own"
    other = background.submit(caller.open)
    assert not any(future.done() for future in waiting)
    gate.touch()

    assert [future.result()["observation"] for future in waiting] == ["meet wait"] * NUM_THREADS
    caller.close(*ids, plain, other.result())


async def test_calls_of_a_session_keep_their_order_and_are_executed_once(server: EnvServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with SessionStream(server.url) as stream:
        session_id = (await stream.open(OPENING)).session_id
        first = [asyncio.ensure_future(stream.step(session_id, 0, f"wait {gate}")) for _ in range(3)]
        behind = [asyncio.ensure_future(stream.step(session_id, 1 + index, f"a{index}")) for index in range(5)]
        await answered_meanwhile(stream)
        assert not any(call.done() for call in (*first, *behind))
        gate.touch()

        assert len({(await call).observation for call in first}) == 1, "two of them got the stored result"
        assert [(await call).observation for call in behind][-1] == "wait a0 a1 a2 a3 a4"
        with pytest.raises(StepOutOfOrder):
            await stream.step(session_id, 9, "go")
        await stream.close(session_id)


async def test_close_and_fork_wait_for_the_step_before_them(server: EnvServer, tmp_path: Path, closed: Path) -> None:
    gate = tmp_path / "gate"
    async with SessionStream(server.url) as stream:
        session_id = (await stream.open(OPENING)).session_id
        step = asyncio.ensure_future(stream.step(session_id, 0, f"wait {gate}"))
        fork = asyncio.ensure_future(stream.fork(session_id, 2))
        close = asyncio.ensure_future(stream.close(session_id))
        after = asyncio.ensure_future(stream.step(session_id, 1, "on"))
        await answered_meanwhile(stream)
        assert not any(call.done() for call in (step, fork, close, after))
        gate.touch()

        assert (await step).index == 0
        children = [child.session_id for child in await fork]
        await close
        with pytest.raises(UnknownSession):
            await after
        assert (await asyncio.to_thread(closed.read_text)).splitlines()[-1] == "wait"
        assert [(await stream.step(child, 1, "on")).observation for child in children] == ["wait on"] * 2
        for child in children:
            await stream.close(child)


async def test_call_that_comes_while_its_session_ends_is_told_why(server: EnvServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with SessionStream(server.url) as stream:
        session_id = (await stream.open(OPENING)).session_id
        await stream.step(session_id, 0, f"gate {gate}")
        first = asyncio.ensure_future(stream.step(session_id, 1, "lose"))
        await asyncio.to_thread(wait_for, gate.with_suffix(".reached"))
        second = asyncio.ensure_future(stream.step(session_id, 1, "lose"))
        await answered_meanwhile(stream)
        assert not second.done()
        gate.touch()

        for call in (first, second):
            with pytest.raises(SessionLost):
                await call


def test_idle_shard_sleeps(server: EnvServer, caller: Caller) -> None:
    caller.close(caller.open())
    (shard,) = server.children()

    before = cpu_seconds(shard)
    time.sleep(0.5)
    assert cpu_seconds(shard) - before < 0.2


async def answered_meanwhile(stream: SessionStream) -> None:
    """Another session's calls, sent behind those that wait: when they are answered, the others have arrived."""
    other = (await stream.open(OPENING)).session_id
    await stream.step(other, 0, "go")
    await stream.close(other)


def test_call_that_lasts_longer_than_the_lease_keeps_it(caller: Caller) -> None:
    session_id = caller.open(lease_s=1.0)
    assert caller.step(session_id, 0, "sleep 1.5")["observation"] == "sleep"
    assert caller.step(session_id, 1, "go")["observation"] == "sleep go"

    reaped = caller.metric("gymfleet_env_reaped_total")
    until(lambda: caller.metric("gymfleet_env_reaped_total") == reaped + 1)
    assert caller.step(session_id, 2, "go")["type"] == "/problems/unknown-session"


def test_environment_that_does_not_wait_stays_in_its_thread(caller: Caller) -> None:
    """Opened, stepped and closed among sessions that wait; its own failures are its own."""
    waiting, plain = caller.open(), caller.open("troublesome")
    steps = [{"session_id": each, "index": index, "action": "go"} for index in range(50) for each in (waiting, plain)]
    results = caller.http.post("/v1/steps", json=steps).json()

    assert [result["index"] for result in results] == [index for index in range(50) for _ in range(2)]
    assert {r["info"]["thread"].partition("-")[0] for r in results if "thread" in r["info"]} == {"session"}
    assert caller.step(plain, 50, "raise")["type"] == "/problems/environment-failed"
    assert caller.step(waiting, 50, "go")["status"] == 200
    caller.close(waiting)


def test_bad_openings_are_refused_as_ever(caller: Caller) -> None:
    for body, kind in (
        ({"env": "waiting", "task_index": 10**6}, "unknown-task"),
        ({"env": "waiting"}, "validation"),
        ({"env": "nowhere", "task_index": 0}, "unknown-environment"),
        ({"env": "waiting", "task_index": 0, "seed": 66}, "unavailable"),
        ({"env": "waiting", "task_index": 0, "seed": 67}, "environment-failed"),
    ):
        response = caller.http.post("/v1/sessions", json=body)
        assert response.json()["type"] == f"/problems/{kind}", response.text


def test_lost_engine_is_a_lost_session_a_metric_and_a_line(server: EnvServer, caller: Caller) -> None:
    lost, other = caller.open(), caller.open()
    before = caller.metric("gymfleet_env_engines_lost_total")

    for _ in range(2):
        answer = caller.step(lost, 0, "lose")
        assert (answer["status"], answer["type"]) == (410, "/problems/session-lost")
        assert "the engine of waiting died" in answer["detail"]

    assert caller.step(other, 0, "go")["observation"] == "go"
    until(lambda: caller.metric("gymfleet_env_engines_lost_total") > before)
    (line,) = [line for line in server.log.splitlines() if "environment.engine_lost" in line and lost in line]
    assert json.loads(line)["reason"] == "the engine is gone"
    caller.close(other)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"waiting": {"closd": "x"}}, "GYMFLEET_ENV_OPTIONS for waiting: closd: .*not permitted .*closed, program"),
        ({"waiting": {"program": ["sh"]}}, "GYMFLEET_ENV_OPTIONS for waiting: program: .*valid string"),
        ({"wating": {}}, "GYMFLEET_ENV_OPTIONS names wating, but served are waiting"),
        ({"waiting": {"program": "no-such-engine"}}, "environment waiting needs the program 'no-such-engine'"),
    ],
)  # fmt: skip
def test_wrong_option_is_one_line_at_the_start(options: dict[str, Any], reason: str) -> None:
    ended = subprocess.run(
        [COMMAND, WAITING],
        env={"GYMFLEET_ENV_OPTIONS": json.dumps(options), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 2
    assert re.fullmatch(f"error: {reason}.*\n", ended.stderr), ended.stderr
