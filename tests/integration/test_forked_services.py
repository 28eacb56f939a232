"""Services that command lines of the tests start are forked, and look from outside like any that was started whole."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fixtures import preloaded
from tests.fixtures.ports import free_port

SERVER = str(Path(sys.executable).with_name("gymfleet-env-server"))
pytestmark = pytest.mark.usefixtures("forked_services")


@dataclass(frozen=True)
class Served:
    """An env server that is ready: what was started, and what answers."""

    started: "subprocess.Popen[bytes]"
    answers: psutil.Process


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """One of maze."""
    port = free_port()
    # As tests of the command line set them.
    others = {"COLUMNS": "100", "XDG_CACHE_HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    environment = {**os.environ, **others, "GYMFLEET_ENV_PORT": str(port)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([SERVER, "maze"], env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + 60
        while not ready(port):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
        listening = [one for one in psutil.net_connections() if one.laddr[1:] == (port,) and one.status == "LISTEN"]
        answers = listening[0].pid
        assert answers is not None
        yield Served(process, psutil.Process(answers))
    finally:
        process.kill()
        process.wait()


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def test_what_it_says_and_how_it_ends_are_passed_on() -> None:
    asked = subprocess.run([SERVER, "--help"], capture_output=True, text=True, check=False)
    mistyped = subprocess.run([SERVER, "--nonsense"], capture_output=True, text=True, check=False)

    assert preloaded.of_command_lines(), "they are forked here"
    assert asked.returncode == 0
    assert "gymfleet-env-server" in asked.stdout
    assert mistyped.returncode == 2
    assert "required: environment" in mistyped.stderr


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)])
def test_signals_reach_it_and_it_ends_with_who_started_it(served: Served, sent: signal.Signals, code: int) -> None:
    assert served.answers.pid != served.started.pid
    shards = served.answers.children()
    assert shards

    served.started.send_signal(sent)

    assert served.started.wait(30) == code
    _, left = psutil.wait_procs([served.answers, *shards], timeout=30)
    assert not left
