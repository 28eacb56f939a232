"""The command line with real services: what it starts, what it says, and that nothing outlives it."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from gymfleet_cli.supervisor.process_groups import members
from gymfleet_cli.supervisor.state import FleetState, read_state

from tests.fixtures.paths import ROOT
from tests.fixtures.run_directory import RECIPE

GYMFLEET = str(Path(sys.executable).with_name("gymfleet"))
GUIDE = ROOT / "docs/adding-an-environment.md"
DEADLINE_S = 90.0


def gymfleet(*arguments: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [GYMFLEET, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env={**os.environ, "COLUMNS": "160", **env},
    )


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def pids(directory: Path) -> list[int]:
    state = read_state(directory)
    return [] if state is None else [service.process.pid for service in state.services]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield tmp_path
    gymfleet("down")


def first_port() -> str:
    """Of a free row of nine, below the range from which the system hands ports to other tests."""
    for first in random.sample(range(20_000, 32_000, 10), 100):
        if all(_is_free(first + offset) for offset in range(9)):
            return str(first)
    raise AssertionError("no row of free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_up_status_down(place: Path) -> None:
    port = first_port()

    up = gymfleet("up", "--env", "maze", "--ports-from", port)

    assert up.returncode == 0, up.stderr
    state = read_state(place / ".gymfleet")
    assert state is not None
    assert [service.name for service in state.services] == ["redis", "env-maze", "env-gateway", "reward"]
    spec = httpx.get(f"http://127.0.0.1:{port}/v1/environments/maze").json()
    assert spec["name"] == "maze"
    assert gymfleet("status").stdout.count(" ready ") == 1 + 4, "the column's name and four services"
    again = gymfleet("up", "--env", "maze")
    assert (again.returncode, again.stderr) == (
        1,
        "error: 4 services run already in .gymfleet; `gymfleet down` stops them\n",
    )
    played = gymfleet("envs", "play", "maze", stdin="hint\nquit\n")
    assert played.returncode == 0, "through the running gateway"
    assert "move" in played.stdout

    down = gymfleet("down")

    assert down.stdout == "stopped 4 services\n"
    assert [members(service.process.pid) for service in state.services] == [[], [], [], []]
    assert gymfleet("down").stdout == "no services run\n"


@pytest.mark.parametrize(
    ("signum", "code"),
    [pytest.param(signal.SIGINT, 130, id="Ctrl-C"), pytest.param(signal.SIGKILL, -9, id="kill -9")],
)
def test_foreground_fleet_leaves_no_process(signum: int, code: int, place: Path) -> None:
    command = [GYMFLEET, "up", "--foreground", "--env", "maze", "--ports-from", first_port()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("Ctrl-C stops" in line for line in process.stdout), "ended before it was ready"
        started = pids(place / ".gymfleet")
        assert len(started) == 4

        process.send_signal(signum)

        assert process.wait(DEADLINE_S) == code
    wait_until(lambda: not any(members(pid) for pid in started), "processes were left behind")


@pytest.mark.parametrize(
    ("signum", "code"),
    [pytest.param(signal.SIGINT, 130, id="Ctrl-C"), pytest.param(signal.SIGKILL, -9, id="kill -9")],
)
def test_interrupted_run_leaves_no_process_and_says_how_to_resume(signum: int, code: int, place: Path) -> None:
    (place / "walk.toml").write_text(RECIPE)
    with subprocess.Popen(
        [GYMFLEET, "train", "walk.toml", "--seed", "3"], stderr=subprocess.PIPE, text=True
    ) as process:
        state_dir = place / "runs/walk/.fleet"
        wait_until(lambda: len(pids(state_dir)) >= 4, "never started")
        started = pids(state_dir)

        process.send_signal(signum)

        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code
    wait_until(lambda: not any(members(pid) for pid in started), "processes were left behind")
    if signum == signal.SIGINT:
        assert "resume with: gymfleet train walk.toml --run-dir runs/walk --set seed=3" in said
        assert read_state(state_dir) is None


@pytest.mark.parametrize(
    ("arguments", "env", "code", "line"),
    [
        pytest.param(["--env", "mase"], {}, 2, "there is no environment 'mase'", id="unknown environment"),
        pytest.param(
            [], {"GYMFLEET_ENV_SHARTS": "2"}, 2, "unknown settings GYMFLEET_ENV_SHARTS", id="misspelt setting"
        ),
        pytest.param([], {"GYMFLEET_ENV_SHARDS": "many"}, 2, "GYMFLEET_ENV_SHARDS", id="wrong setting"),
    ],
)
def test_start_that_fails_says_why_in_one_line(
    arguments: list[str], env: dict[str, str], code: int, line: str, place: Path
) -> None:
    result = gymfleet("up", "--ports-from", first_port(), *(arguments or ["--env", "maze"]), **env)

    assert result.returncode == code
    (error,) = [said for said in result.stderr.splitlines() if said.startswith("error: ")]
    assert line in error
    assert re.search(r"error: env-ma[sz]e failed: .* \(log: \.gymfleet/logs/env-ma[sz]e\.log\)", error)
    assert "Traceback" not in result.stderr
    assert read_state(place / ".gymfleet") is None, "what had started was stopped"


def test_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        result = gymfleet("up", "--env", "maze", "--ports-from", str(port))

    assert result.returncode == 2
    assert result.stderr.startswith(f"error: port {port}, meant for env-gateway, is in use")


def test_damaged_state_is_not_taken_for_no_fleet(place: Path) -> None:
    (place / ".gymfleet").mkdir()
    (place / ".gymfleet/fleet.json").write_text("{}{")

    result = gymfleet("up", "--env", "maze")
    (place / ".gymfleet/fleet.json").unlink()

    assert result.returncode == 1
    assert "fleet.json cannot be read" in result.stderr


def test_state_of_processes_that_are_gone_is_in_nobodys_way(place: Path) -> None:
    (place / ".gymfleet").mkdir()
    (place / ".gymfleet/fleet.json").write_text(FleetState().model_dump_json())

    assert gymfleet("down").stdout == "no services run\n"
    assert not (place / ".gymfleet/fleet.json").exists()


def test_environment_of_the_guide_is_played_through_a_pipe(place: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (place / "guess.py").write_text(next(block for block in blocks if "Environment[int]" in block), encoding="utf-8")

    played = gymfleet("envs", "play", "guess.py", "--split", "test", stdin="0\nhint\n1001\nquit\n")

    assert played.returncode == 0, played.stderr
    assert "Guess a number from 1 to 1000" in played.stdout
    assert "Higher." in played.stdout
    assert "Lower." in played.stdout
    assert "expert" in played.stdout.lower(), "no hints on held-out tasks"
    assert [path.name for path in place.iterdir() if path.name != "__pycache__"] == ["guess.py"]
