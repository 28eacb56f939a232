"""Sessions and shards over their limits, and what is left behind when they come and go by the hundred."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.chaos.test_env_shards import Caller
from tests.conformance.env_server import EnvServer, is_running, wait_until_gone

ENV_FILE = str(Path(__file__).parents[1] / "conformance" / "troublesome_env.py")
MEMORY_MB = 192


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnvServer]:
    settings: dict[str, Any] = {"shards": 2, "step_timeout_s": 2, "session_cpu_s": 0.3, "shard_memory_mb": MEMORY_MB}
    with EnvServer(tmp_path_factory.mktemp("server"), ENV_FILE, **settings) as server:
        yield server


@pytest.fixture
def caller(server: EnvServer) -> Iterator[Caller]:
    caller = Caller(server.url)
    with caller.http:
        caller.until_ready()
        yield caller


def metric(caller: Caller, name: str) -> float:
    lines = caller.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_session_over_its_processor_time_is_closed_and_its_neighbour_is_not(caller: Caller) -> None:
    greedy, neighbour = caller.open(0), caller.open(0)
    assert caller.step(greedy, 0, "burn 0.1")["index"] == 0
    assert caller.step(neighbour, 0, "sleep 0.5")["index"] == 0, "to wait costs no processor time"

    answers = [caller.step(greedy, 1, "burn 0.3"), caller.step(greedy, 1, "burn 0.3")]

    assert [(answer["status"], answer["type"], answer["limit"]) for answer in answers] == [
        (410, "/problems/session-limit", "session_cpu_s")
    ] * 2
    assert caller.step(neighbour, 1, "go")["index"] == 1
    until(lambda: metric(caller, "gymfleet_env_limited_total") == 1)
    caller.close(neighbour)


def test_shard_over_its_memory_is_recycled_and_its_sessions_are_lost(server: EnvServer, caller: Caller) -> None:
    leaking, companion, neighbour = caller.open(0), caller.open(0), caller.open(1)
    pid = caller.step(leaking, 0, "a")["info"]["pid"]
    before = metric(caller, 'gymfleet_env_shard_restarts_total{cause="memory"}')

    for index in range(1, 9):
        answer = caller.step(leaking, index, "grow 40")
        if answer["status"] == 410:
            break
    wait_until_gone([pid])

    caller.until_ready()
    for session_id in (leaking, companion):
        answer = caller.step(session_id, 99, "go")
        assert (answer["status"], answer["type"]) == (410, "/problems/session-lost")
    assert caller.step(neighbour, 0, "go")["observation"] == "step 1: go"
    assert metric(caller, 'gymfleet_env_shard_restarts_total{cause="memory"}') == before + 1
    (line,) = [line for line in server.log.splitlines() if "shard.recycled" in line]
    assert f'"limit_mb": {MEMORY_MB}' in line
    assert f'"pid": {pid}' in line
    caller.close(neighbour)


def test_absurd_allocation_fails_its_own_session_alone(caller: Caller) -> None:
    absurd, companion = caller.open(0), caller.open(0)
    pid = caller.step(companion, 0, "a")["info"]["pid"]

    answer = caller.step(absurd, 0, "grow 2048")  # MiB: less than the machine has

    assert (answer["status"], answer["exception"]) == (500, "MemoryError")
    assert caller.step(companion, 1, "b")["info"]["pid"] == pid, "the shard lives on"
    caller.close(companion)


def test_limit_below_what_the_environments_need_is_one_line_at_the_start(tmp_path: Path) -> None:
    filler = tmp_path / "large.py"
    filler.write_text(Path(ENV_FILE).read_text() + "\nballast = bytearray(b'x' * (80 << 20))\n")

    with pytest.raises(RuntimeError, match=r"before its first session; raise GYMFLEET_ENV_SHARD_MEMORY_MB=64"):
        EnvServer(tmp_path, str(filler), shard_memory_mb=64).start()


def test_hanging_environment_counts_as_failed_and_the_log_names_it(server: EnvServer, caller: Caller) -> None:
    hanging = caller.open(1)
    failures = metric(caller, 'gymfleet_env_failures_total{env="troublesome"}')
    hung = metric(caller, 'gymfleet_env_shard_restarts_total{cause="hung"}')

    assert caller.step(hanging, 0, "hang")["type"] == "/problems/step-timeout"

    caller.until_ready()
    assert metric(caller, 'gymfleet_env_failures_total{env="troublesome"}') == failures + 1
    assert metric(caller, 'gymfleet_env_shard_restarts_total{cause="hung"}') == hung + 1
    line = next(line for line in server.log.splitlines() if "shard.died" in line and hanging in line)
    assert '"env": "troublesome"' in line
    assert '"exit_code": -9' in line


def test_lease_ends_within_a_tenth_of_its_time(caller: Caller) -> None:
    """Measured from outside: opened, left alone, and gone from the load; which may be a tenth of a second old."""
    lease_s = 2.0
    response = caller.http.post("/v1/sessions", json={"env": "troublesome", "task_index": 0, "lease_s": lease_s})
    opened_at = time.monotonic()
    assert response.status_code == 201
    until(lambda: caller.http.get("/v1/load").json()["sessions"] != {})

    until(lambda: caller.http.get("/v1/load").json()["sessions"] == {})

    assert lease_s - 0.1 <= time.monotonic() - opened_at <= 1.1 * lease_s + 1.0, "a second for a busy machine"


def test_fork_of_eight_leaves_the_parent_as_it_was(caller: Caller) -> None:
    parent = caller.open(0)
    caller.step(parent, 0, "a")

    def state() -> dict[str, Any]:
        found: dict[str, Any] = caller.http.get(f"/v1/sessions/{parent}").json()
        return {key: value for key, value in found.items() if key != "expires_in_s"}

    before = state()
    children = caller.http.post(f"/v1/sessions/{parent}/fork", json={"count": 8}).json()

    assert [child["index"] for child in children] == [1] * 8
    for child in children:
        caller.step(child["session_id"], 1, "other")
        caller.close(child["session_id"])
    assert state() == before
    assert caller.step(parent, 1, "b")["observation"] == "step 2: b"
    caller.close(parent)


def held(pid: int) -> tuple[int, int]:
    """Open files and threads of a process."""
    process = psutil.Process(pid)
    return process.num_fds(), process.num_threads()


def test_hundreds_of_sessions_and_killed_shards_leak_no_process_file_or_thread(
    server: EnvServer, caller: Caller
) -> None:
    def rounds(kills: int) -> None:
        for _ in range(kills):
            opened = [
                caller.http.post("/v1/sessions", json={"env": "troublesome", "task_index": 0}).json()["session_id"]
                for _ in range(40)
            ]
            victim = server.children()[0]
            os.kill(victim, signal.SIGKILL)
            wait_until_gone([victim])
            caller.until_ready()
            for session_id in opened:
                assert caller.close(session_id) == 204

    rounds(2)  # whatever is made once was made
    before, shards = held(server.pid), len(server.children())

    rounds(5)

    until(lambda: held(server.pid)[0] <= before[0])
    assert held(server.pid)[1] <= before[1] + 4, "the loop's own thread pool may still grow to its size"
    assert len([pid for pid in server.children() if is_running(pid)]) == shards == 2
    until(lambda: httpx.get(f"{server.url}/v1/load").json()["sessions"] == {})
