"""A server of an environment written with `async def`: a thousand sessions wait, and no thread does."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gymfleet_client import SessionStream
from gymfleet_contracts.session import OpenSession

from tests.conformance.env_server import EnvServer, wait_until_gone
from tests.integration.test_env_server_waiting import Caller, until

AWAITING = "tests.fixtures.awaiting_environment:Awaiting"
STEP_TIMEOUT_S = 2.0


def lines(diary: Path) -> list[str]:
    return diary.read_text().splitlines() if diary.exists() else []


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diary") / "diary"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, diary: Path) -> Iterator[EnvServer]:
    options = json.dumps({"awaiting": {"diary": str(diary)}})
    directory = tmp_path_factory.mktemp("server")
    with EnvServer(directory, AWAITING, step_timeout_s=STEP_TIMEOUT_S, options=options, session_cpu_s=0.5) as server:
        yield server


@pytest.fixture
def caller(server: EnvServer) -> Iterator[Caller]:
    caller = Caller(server.url)
    with caller.http:
        until(lambda: caller.http.get("/readyz").status_code == 200)
        yield caller


def open_with(caller: Caller, **fields: int) -> tuple[int, str]:
    response = caller.http.post("/v1/sessions", json={"env": "awaiting", "task_index": 0, **fields})
    return response.status_code, response.json().get("type", "")


async def test_a_thousand_sessions_wait_at_once_and_no_thread_does(server: EnvServer) -> None:
    async with SessionStream(server.url) as stream:

        async def play(index: int) -> int:
            session = await stream.open(OpenSession(env="awaiting", task_index=index))
            result = await stream.step(session.session_id, 0, "sleep 1")
            await stream.close(session.session_id)
            return int(result.info["threads"])  # type: ignore[arg-type]

        began = time.monotonic()
        threads = await asyncio.gather(*(play(index) for index in range(1000)))

    assert max(threads) < 20
    assert time.monotonic() - began < 30, "one after the other they would take 1,000 s"


async def test_calls_of_a_session_keep_their_order_and_those_of_two_overlap(server: EnvServer) -> None:
    async with SessionStream(server.url) as stream:
        one, other = [(await stream.open(OpenSession(env="awaiting", task_index=0))).session_id for _ in range(2)]
        first = asyncio.create_task(stream.step(one, 0, "sleep 1"))  # the socket keeps the order of what is sent
        await stream.step(other, 0, "go")
        assert not first.done(), "the other's call was answered while it waited"

        second = await stream.step(one, 1, "go")

        assert second.observation == "sleep go", "in line behind it"
        assert (await first).observation == "sleep"


def test_what_sessions_share_belongs_to_one_loop(caller: Caller) -> None:
    ids = [caller.open("awaiting") for _ in range(3)]
    steps = [{"session_id": each, "index": 0, "action": "alone 0.1"} for each in ids]

    results = caller.http.post("/v1/steps", json=steps).json()

    assert [result.get("observation") for result in results] == ["alone"] * 3, results


def test_expert_fork_and_repeated_steps(caller: Caller) -> None:
    session = caller.open("awaiting")
    url = f"/v1/sessions/{session}"
    assert caller.http.get(f"{url}/expert").json()["action"] == "go"
    first = caller.step(session, 0, "one")
    assert caller.step(session, 0, "one") == first
    assert caller.http.get(f"{url}/expert").json()["type"] == "/problems/expert-unavailable"

    children = caller.http.post(f"{url}/fork", json={"count": 2}).json()

    assert [caller.step(child["session_id"], 1, "two")["observation"] for child in children] == ["one two"] * 2
    assert caller.step(session, 1, "three")["observation"] == "one three"


def test_failures_have_their_own_names(caller: Caller) -> None:
    assert open_with(caller, seed=66) == (503, "/problems/unavailable")
    assert open_with(caller, seed=67) == (500, "/problems/environment-failed")
    for action, status, problem in (
        ("lose", 410, "/problems/session-lost"),
        ("cancel", 500, "/problems/environment-failed"),
        ("sleep x", 500, "/problems/environment-failed"),
    ):
        answer = caller.step(caller.open("awaiting"), 0, action)
        assert (answer["status"], answer["type"]) == (status, problem)


def test_call_that_takes_too_long_is_cancelled_with_its_session_alone(
    server: EnvServer, caller: Caller, diary: Path
) -> None:
    hanging, busy = caller.open("awaiting"), caller.open("awaiting")
    pid = caller.step(busy, 0, "go")["info"]["pid"]
    with ThreadPoolExecutor(2) as background:
        step = background.submit(caller.step, hanging, 0, "hang step")
        opening = background.submit(open_with, caller, seed=68)

        assert (step.result()["status"], step.result()["type"]) == (504, "/problems/step-timeout")
        assert opening.result() == (504, "/problems/step-timeout")
    until(lambda: {"cancelled step", "cancelled reset"} <= set(lines(diary)))
    until(lambda: lines(diary)[-1] == "closed")
    assert caller.step(hanging, 0, "hang step")["type"] == "/problems/step-timeout", "it is over, and says why"
    assert caller.step(busy, 1, "go")["info"]["pid"] == pid
    assert "shard.died" not in server.log


def test_processor_time_is_counted_by_session(caller: Caller) -> None:
    burning, waiting = caller.open("awaiting"), caller.open("awaiting")
    with ThreadPoolExecutor(1) as background:
        patient = background.submit(caller.step, waiting, 0, "sleep 1.2")
        assert caller.step(burning, 0, "burn 0.3")["status"] == 200
        assert caller.step(burning, 1, "burn 0.3")["type"] == "/problems/session-limit"

    assert patient.result()["status"] == 200, "it has waited while the other computed"


def test_code_that_blocks_the_loop_ends_the_shard(tmp_path: Path) -> None:
    with EnvServer(tmp_path, AWAITING, step_timeout_s=STEP_TIMEOUT_S) as server:
        caller = Caller(server.url)
        with caller.http:
            blocking, neighbour = caller.open("awaiting"), caller.open("awaiting")
            pid = caller.step(neighbour, 0, "go")["info"]["pid"]
            assert caller.step(blocking, 0, "block 600")["type"] == "/problems/step-timeout"
            assert caller.step(neighbour, 1, "go")["type"] == "/problems/session-lost"
            wait_until_gone([pid])
            until(lambda: caller.http.get("/readyz").status_code == 200)
            assert caller.step(caller.open("awaiting"), 0, "go")["status"] == 200
            line = next(line for line in server.log.splitlines() if "shard.hung" in line)
            assert json.loads(line)["env"] == "awaiting"


def test_end_of_the_server_awaits_what_environments_release(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    with EnvServer(tmp_path, AWAITING, options=json.dumps({"awaiting": {"diary": str(diary)}})) as server:
        caller = Caller(server.url)
        with caller.http:
            for name in ("one", "two"):
                caller.step(caller.open("awaiting"), 0, name)
        server.stop(signal.SIGTERM)

    assert sorted(line for line in lines(diary) if line != "closed") == ["closed one", "closed two"]
