"""Calls in threads that hang, engines that die, and the processes that a shard started: nothing is left of them."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from gymfleet_client import SessionStream
from gymfleet_contracts.session import OpenSession

from tests.conformance.env_server import EnvServer, is_running, wait_until_gone
from tests.fixtures import gateway_fleet
from tests.fixtures.redis_server import RedisServer
from tests.integration.test_env_server_waiting import WAITING, Caller, until

STEP_TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServer]:
    with EnvServer(tmp_path_factory.mktemp("server"), WAITING, step_timeout_s=STEP_TIMEOUT_S) as server:
        yield server


@pytest.fixture
def caller(server: EnvServer) -> Iterator[Caller]:
    caller = Caller(server.url)
    with caller.http:
        until(lambda: caller.http.get("/readyz").status_code == 200)
        yield caller


def test_hanging_call_ends_its_own_session_alone(tmp_path: Path) -> None:
    closed, gate = tmp_path / "closed", tmp_path / "gate"
    options = json.dumps({"waiting": {"closed": str(closed)}})
    with EnvServer(tmp_path, WAITING, step_timeout_s=STEP_TIMEOUT_S, threads=3, options=options) as server:
        caller = Caller(server.url)
        with caller.http, ThreadPoolExecutor(3) as background:
            hanging, behind, busy = caller.open(), caller.open(), caller.open()
            pid = caller.step(busy, 0, "go")["info"]["pid"]
            hung = [
                background.submit(caller.step, hanging, 0, f"wait {gate}"),
                background.submit(caller.step, hanging, 0, f"wait {gate}"),  # a duplicate, in line behind it
                background.submit(caller.step, behind, 0, f"wait {gate}"),
            ]
            index = 1
            while not all(call.done() for call in hung):
                assert caller.step(busy, index, "go")["info"]["pid"] == pid
                index += 1

            assert {(call.result()["status"], call.result()["type"]) for call in hung} == {
                (504, "/problems/step-timeout")
            }
            assert caller.step(hanging, 0, "go")["type"] == "/problems/step-timeout", "it is over, and says why"
            assert caller.step(caller.open(), 0, "go")["info"]["pid"] == pid, "there is a thread for others"
            assert "shard.died" not in server.log
            assert server.log.count("call.overdue") == 2
            assert "wait" not in closed.read_text(), "the environments are still in use"
            gate.touch()
            until(lambda: closed.read_text().splitlines().count("wait") == 2)
            assert caller.step(busy, index, "go")["info"]["pid"] == pid


def test_shard_with_too_many_stuck_threads_is_replaced(tmp_path: Path) -> None:
    with EnvServer(tmp_path, WAITING, step_timeout_s=STEP_TIMEOUT_S, threads=1) as server:
        caller = Caller(server.url)
        with caller.http, ThreadPoolExecutor(2) as background:
            first, second, neighbour = caller.open(), caller.open(), caller.open()
            pid = caller.step(neighbour, 0, "go")["info"]["pid"]
            assert caller.step(first, 0, "sleep 600")["type"] == "/problems/step-timeout"
            answer = caller.step(neighbour, 1, "go")
            assert answer["status"] == 200, answer
            assert answer["info"]["pid"] == pid
            stuck = background.submit(caller.step, second, 0, "sleep 600")
            assert stuck.result()["type"] == "/problems/step-timeout"
            wait_until_gone([pid])
            assert caller.step(neighbour, 2, "go")["type"] == "/problems/session-lost"
            until(lambda: "shard.died" in server.log)
            line = next(line for line in server.log.splitlines() if "shard.died" in line)
            assert (json.loads(line)["cause"], json.loads(line)["session_id"]) == ("hung", second)


def test_opening_that_hangs_is_given_up_and_closed_when_it_returns(tmp_path: Path) -> None:
    closed, gate = tmp_path / "closed", tmp_path / "gate"
    options = json.dumps({"waiting": {"closed": str(closed), "gate": str(gate)}})
    with EnvServer(tmp_path, WAITING, step_timeout_s=STEP_TIMEOUT_S, options=options) as server:
        caller = Caller(server.url)
        with caller.http:
            refused = caller.http.post("/v1/sessions", json={"env": "waiting", "task_index": 0, "seed": 68})
            assert (refused.status_code, refused.json()["type"]) == (504, "/problems/step-timeout")
            before = len(closed.read_text().splitlines())  # of probes
            gate.touch()
            until(lambda: len(closed.read_text().splitlines()) > before)
            assert "shard.died" not in server.log


def test_slow_calls_by_the_dozen_are_no_hang(tmp_path: Path) -> None:
    """Eight calls of a third of the limit in two threads: longer than the limit together."""
    with EnvServer(tmp_path, WAITING, step_timeout_s=STEP_TIMEOUT_S, threads=2) as server:
        caller = Caller(server.url)
        with caller.http:
            ids = [caller.open() for _ in range(8)]
            results = caller.http.post(
                "/v1/steps",
                json=[{"session_id": each, "index": 0, "action": f"sleep {STEP_TIMEOUT_S / 3}"} for each in ids],
            ).json()

    assert [result.get("index") for result in results] == [0] * 8


def spawned(caller: Caller) -> tuple[int, int]:
    """A shard, and a process that a session of it started."""
    info = caller.step(caller.open(), 0, "spawn")["info"]
    assert is_running(info["child"])
    return info["pid"], info["child"]


def kill_shard(server: EnvServer, shard: int) -> None:
    del server
    os.kill(shard, signal.SIGKILL)


def kill_front(server: EnvServer, shard: int) -> None:
    del shard
    server.stop(signal.SIGKILL)


def kill_front_under_a_stopped_shard(server: EnvServer, shard: int) -> None:
    """Its threads cannot do anything: the kernel has to."""
    os.kill(shard, signal.SIGSTOP)
    server.stop(signal.SIGKILL)


def end(server: EnvServer, shard: int) -> None:
    del shard
    assert server.stop(signal.SIGTERM) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("how", "in_threads"),
    [
        (kill_shard, True),
        (kill_front, True),
        (kill_front_under_a_stopped_shard, True),
        (kill_front_under_a_stopped_shard, False),
        (end, True),
    ],
)
def test_no_process_outlives_its_shard(tmp_path: Path, how: Callable[[EnvServer, int], None], in_threads: bool) -> None:
    with EnvServer(tmp_path, WAITING if in_threads else plain_spawner(tmp_path)) as server:
        caller = Caller(server.url)
        with caller.http:
            shard, child = spawned(caller)

            how(server, shard)

        wait_until_gone([shard, child])


def plain_spawner(directory: Path) -> str:
    """The same environment, called from the shard's own thread."""
    path = directory / "plain_spawner.py"
    path.write_text(
        Path(WAITING).read_text().replace("blocking: ClassVar[bool] = True", "blocking: ClassVar[bool] = False")
    )
    return str(path)


def test_end_closes_the_environments_and_lets_the_process_say_goodbye(tmp_path: Path) -> None:
    closed, goodbye = tmp_path / "closed", tmp_path / "goodbye"
    source = tmp_path / "leaving.py"
    source.write_text(
        f"{Path(WAITING).read_text()}\nimport atexit\natexit.register(lambda: Path({str(goodbye)!r}).touch())\n"
    )
    options = json.dumps({"waiting": {"closed": str(closed)}})
    with EnvServer(tmp_path, str(source), options=options) as server:
        caller = Caller(server.url)
        with caller.http:
            for name in ("one", "two", "stuck"):
                caller.step(caller.open(), 0, name)
        began = time.monotonic()

        server.stop(signal.SIGTERM)

    assert sorted(line for line in closed.read_text().splitlines() if line) == ["one", "two"]
    assert goodbye.exists()
    assert time.monotonic() - began < 15, "the one that is stuck is not waited for for ever"


async def test_gateway_replays_a_session_whose_engine_died(tmp_path: Path) -> None:
    reference = "tests.fixtures.waiting_environment:Waiting"
    with RedisServer(tmp_path) as redis:
        env_server = gateway_fleet.env_server(tmp_path, reference)
        gateway = gateway_fleet.gateway(tmp_path, [env_server.url], redis_url=redis.url)
        with gateway_fleet.running(env_server, gateway):
            async with SessionStream(gateway.url) as stream:
                lost, other = [
                    (await stream.open(OpenSession(env="waiting", task_index=index, lease_s=60))).session_id
                    for index in range(2)
                ]
                for session_id in (lost, other):
                    await stream.step(session_id, 0, "a")
                await stream.step(lost, 1, "b")

                pending = asyncio.create_task(stream.step(lost, 2, f"lose-once {tmp_path / 'once'}"))
                assert (await stream.step(other, 1, "c")).observation == "a c"
                result = await pending

                assert (tmp_path / "once").exists()
                assert (result.index, result.observation) == (2, "a b lose-once")
                assert (await stream.step(lost, 3, "d")).observation == "a b lose-once d"
                children = await stream.fork(lost, 2)
                assert [child.observation for child in children] == ["a b lose-once d"] * 2
            assert "session.recovered" in gateway.log()
            assert "environment.engine_lost" in env_server.log()
