"""Shards that hang, die or are killed: typed answers, unharmed neighbours, and a successor."""

import concurrent.futures
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.env_server import EnvServer, wait_until_gone

ENV_FILE = str(Path(__file__).parents[1] / "conformance" / "troublesome_env.py")
STEP_TIMEOUT_S = 2.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServer]:
    with EnvServer(tmp_path_factory.mktemp("server"), ENV_FILE, shards=2, step_timeout_s=STEP_TIMEOUT_S) as server:
        yield server


class Caller:
    """Sessions on a chosen shard, and steps."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)

    def open(self, shard: int) -> str:
        """Open sessions until one is on `shard`; close the others."""
        surplus = []
        deadline = time.monotonic() + 60
        while True:
            response = self.http.post("/v1/sessions", json={"env": "troublesome", "task_index": 0})
            if response.status_code == 201:
                session_id: str = response.json()["session_id"]
                if session_id.split("-")[1] == str(shard):
                    break
                surplus.append(session_id)
            assert time.monotonic() < deadline, response.text
        for other in surplus:
            self.close(other)
        return session_id

    def step(self, session_id: str, index: int, action: str) -> dict[str, Any]:
        response = self.http.post(f"/v1/sessions/{session_id}/steps", json={"index": index, "action": action})
        answer: dict[str, Any] = {"status": response.status_code, **response.json()}
        return answer

    def close(self, session_id: str) -> int:
        return self.http.delete(f"/v1/sessions/{session_id}").status_code

    def until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while self.http.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def caller(server: EnvServer) -> Iterator[Caller]:
    caller = Caller(server.url)
    with caller.http:
        caller.until_ready()
        yield caller


def test_hanging_step_is_a_timeout_and_its_shard_is_replaced(server: EnvServer, caller: Caller) -> None:
    hanging, companion, neighbour = caller.open(0), caller.open(0), caller.open(1)
    caller.step(companion, 0, "a")
    pid = caller.step(companion, 1, "b")["info"]["pid"]
    before = caller.step(neighbour, 0, "a")

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        hung = threads.submit(caller.step, hanging, 0, "hang")
        time.sleep(0.1)  # so that the second call stands behind the first; the outcome is the same without
        behind = threads.submit(caller.step, companion, 2, "c")
        steps = [caller.step(neighbour, 1 + index, "go")["observation"] for index in range(20)]

    assert (hung.result()["status"], hung.result()["type"]) == (504, "/problems/step-timeout")
    assert (behind.result()["status"], behind.result()["type"]) == (410, "/problems/session-lost")
    assert steps == [f"step {2 + index}: go" for index in range(20)]
    assert caller.step(companion, 1, "b")["type"] == "/problems/session-lost", "never a silent fresh environment"
    assert caller.step(hanging, 0, "hang")["type"] == "/problems/session-lost"
    assert caller.close(companion) == 204, "what is lost is closed"
    wait_until_gone([pid])
    caller.until_ready()
    fresh = caller.open(0)
    assert caller.step(fresh, 0, "a")["info"]["pid"] != pid
    assert caller.step(neighbour, 21, "a")["info"]["pid"] == before["info"]["pid"]
    caller.close(fresh)
    caller.close(neighbour)


@pytest.mark.parametrize("how", ["kill -9", "os._exit in a step"])
def test_dead_shard_loses_its_own_sessions_alone(server: EnvServer, caller: Caller, how: str) -> None:
    doomed, companion, neighbour = caller.open(1), caller.open(1), caller.open(0)
    pid = caller.step(doomed, 0, "a")["info"]["pid"]

    if how == "kill -9":
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
    else:
        assert caller.step(doomed, 1, "die")["type"] == "/problems/session-lost"

    assert caller.step(neighbour, 0, "b")["observation"] == "step 1: b"
    for session_id in (doomed, companion):
        answer = caller.step(session_id, 1, "b")
        assert (answer["status"], answer["type"]) == (410, "/problems/session-lost")
        assert caller.http.get(f"/v1/sessions/{session_id}").status_code == 410
    caller.until_ready()
    fresh = caller.open(1)
    assert caller.step(fresh, 0, "a")["observation"] == "step 1: a"
    assert caller.step(doomed, 1, "b")["type"] == "/problems/session-lost", "nor does its successor take it for its own"
    for session_id in (fresh, neighbour):
        caller.close(session_id)


def test_opens_wait_while_the_only_shard_is_started_again(tmp_path: Path) -> None:
    with EnvServer(tmp_path, ENV_FILE, shards=1) as server:
        caller = Caller(server.url)
        body = {"env": "troublesome", "task_index": 0}
        with caller.http, concurrent.futures.ThreadPoolExecutor(9) as threads:
            first = caller.open(0)
            pid = caller.step(first, 0, "a")["info"]["pid"]
            slow = threads.submit(caller.step, first, 1, "sleep 60")
            behind = [threads.submit(caller.http.post, "/v1/sessions", json=body) for _ in range(4)]
            os.kill(pid, signal.SIGKILL)
            assert slow.result()["type"] == "/problems/session-lost"
            after = [threads.submit(caller.http.post, "/v1/sessions", json=body) for _ in range(4)]
            assert [each.result().status_code for each in (*behind, *after)] == [201] * 8

            for each in after:
                assert caller.step(each.result().json()["session_id"], 0, "a")["info"]["pid"] != pid


def test_an_open_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    """A shard that cannot start again: its environment's file is gone."""
    source = tmp_path / "gone.py"
    source.write_text(Path(ENV_FILE).read_text())
    with EnvServer(tmp_path, str(source), shards=1, open_wait_s=0.5) as server:
        caller = Caller(server.url)
        with caller.http:
            pid = caller.step(caller.open(0), 0, "a")["info"]["pid"]
            source.unlink()
            os.kill(pid, signal.SIGKILL)
            wait_until_gone([pid])
            refused = caller.http.post("/v1/sessions", json={"env": "troublesome", "task_index": 0})

    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/unavailable")
    assert refused.headers["retry-after"] == "1"


def test_an_open_that_kills_each_shard_is_refused(server: EnvServer, caller: Caller) -> None:
    refused = caller.http.post("/v1/sessions", json={"env": "troublesome", "task_index": 0, "seed": 999})

    assert (refused.status_code, refused.json()["type"]) == (503, "/problems/unavailable")
    assert server.log.count("shard.died") >= 2


def test_stopped_shard_is_noticed(server: EnvServer, caller: Caller) -> None:
    session_id, neighbour = caller.open(0), caller.open(1)
    pid = caller.step(session_id, 0, "a")["info"]["pid"]

    os.kill(pid, signal.SIGSTOP)
    answer = caller.step(session_id, 1, "b")

    assert answer["status"] in (410, 504)
    assert caller.step(neighbour, 0, "a")["observation"] == "step 1: a"
    wait_until_gone([pid])
    caller.until_ready()
    caller.close(neighbour)


def test_many_slow_steps_in_line_are_no_hang(server: EnvServer, caller: Caller) -> None:
    """Six steps of a third of the limit each, on one shard: longer than the limit together."""
    ids = [caller.open(0) for _ in range(6)]

    results = caller.http.post(
        "/v1/steps",
        json=[{"session_id": each, "index": 0, "action": f"sleep {STEP_TIMEOUT_S / 3}"} for each in ids],
    ).json()

    assert [result.get("index") for result in results] == [0] * 6
    for session_id in ids:
        caller.close(session_id)


def test_sessions_of_an_earlier_server_are_lost_and_not_unknown(tmp_path: Path) -> None:
    with EnvServer(tmp_path, ENV_FILE) as first:
        caller = Caller(first.url)
        with caller.http:
            old = caller.open(0)
        first.stop(signal.SIGKILL)
    with EnvServer(tmp_path, ENV_FILE) as second:
        caller = Caller(second.url)
        with caller.http:
            answer = caller.step(old, 0, "a")

    assert (answer["status"], answer["type"]) == (410, "/problems/session-lost")
