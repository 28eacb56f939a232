"""Every OpenAPI document that is served, against the server that serves it: schemathesis with all its checks.

It runs in a process of its own, by its command. In this one its hypothesis would stay
behind with a garbage collection callback in Python, during which threads may switch in
the middle of building a syntax tree; CPython 3.11 counts the depth of all such trees
together, and pytest's own parsing then fails with `AST constructor recursion depth mismatch`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from gymfleet_kit.access import AccessRules
from gymfleet_trainer.app import create
from gymfleet_trainer.run.progress import Reporter
from gymfleet_trainer.run.run_directory import RunDirectory

from tests.fixtures import gateway_fleet
from tests.fixtures.paths import ROOT
from tests.fixtures.served_app import serving
from tests.fixtures.service_process import ServiceProcess
from tests.fleet import Fleet

EXAMPLES: Final = int(os.environ.get("GYMFLEET_FUZZ_EXAMPLES", "1"))
"""Per operation, beside those that cover each bound; more find more and take longer."""
TIMEOUT_S: Final = 180.0 + 30.0 * EXAMPLES
GAMES: Final = ("maze", "textcraft", "wordle", "babyai")
CHAIN: Final = "tests.fixtures.fragile_environments:Chain"
pytestmark = pytest.mark.timeout(TIMEOUT_S + 180)


@dataclass(frozen=True)
class Served:
    """Env server and gateway, as real processes."""

    env_server: str
    gateway: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Served]:
    logs = tmp_path_factory.mktemp("served")
    server = gateway_fleet.env_server(logs, *GAMES, CHAIN, max_sessions="100000", lease_s="40")
    gateway = gateway_fleet.gateway(logs, [server.url], redis_url=redis_url)
    with gateway_fleet.running(server, gateway):
        yield Served(server.url, gateway.url)


TOOLS_CONFIG: Final = """
[[operations]]  # which tools there are, and what they take, the environment declares
include-path = "/v1/sessions/{session_id}/tool"
checks.positive_data_acceptance.enabled = false
"""

ROLLOUT_CONFIG: Final = """
[[operations]]  # which formats and strategies there are, and which options they take, only the service can tell
include-path = "/v1/jobs"
checks.positive_data_acceptance.enabled = false
[[operations]]
include-path = "/v1/playable"
checks.positive_data_acceptance.enabled = false
[[operations]]  # which weights load and which tokens exist, only the engine can tell
include-path = "/v1/policy/versions"
checks.positive_data_acceptance.enabled = false
[[operations]]  # the engines of this service were not started for it
include-path = "/v1/policy/sleep"
checks.positive_data_acceptance.enabled = false
[[operations]]  # a job that is ended stays to be asked for what it had finished
include-path = "/v1/jobs/{job_id}"
checks.use_after_free.enabled = false
[[operations]]
include-path = "/v1/jobs/{job_id}/trajectories"
checks.use_after_free.enabled = false
"""

REWARD_CONFIG: Final = """
[[operations]]  # which components there are, and which options they take, only the service can tell
include-path = "/v1/scores"
checks.positive_data_acceptance.enabled = false
"""

GATEWAY_CONFIG: Final = f"""
{TOOLS_CONFIG}
[[operations]]  # a 500 is what these clients get for a mistake of theirs, as from AgentGym's own servers
include-path-regex = "^/agentgym/(sqlgym|webshop|searchqa|weather|movie|academia|sheet|todo)/"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "500"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "4xx", "500"]
"""


def fuzz(directory: Path, url: str, *, environments: tuple[str, ...] = (), origin: str = "") -> None:
    """Run schemathesis over the document at `url`; every failure is in the message."""
    report = directory / "report.json"
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run", f"{url}/openapi.json", "--url", url,
        "--max-examples", str(EXAMPLES), "--generation-deterministic", "--continue-on-failure", "--no-shrink",
        "--suppress-health-check", "all", "--no-color", "--report", "json", "--report-json-path", str(report),
    ]  # fmt: skip
    hooks = {"SCHEMATHESIS_HOOKS": "tests.contract.fuzz_hooks", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    known = {"FUZZ_URL": origin or url, "FUZZ_ENVIRONMENTS": " ".join(environments)}
    ran = subprocess.run(
        command, env={**os.environ, **hooks, **known}, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
    assert json.loads(report.read_text(encoding="utf-8")), "schemathesis has tested nothing"
    assert "Tested: 0" not in ran.stdout


def test_env_server(served: Served, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(TOOLS_CONFIG, encoding="utf-8")
    fuzz(tmp_path, served.env_server, environments=("chain", "maze"))


def test_gateway_with_all_fronts(served: Served, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(GATEWAY_CONFIG, encoding="utf-8")
    fuzz(tmp_path, served.gateway, environments=("chain", "maze"))


def test_openenv_front(served: Served, tmp_path: Path) -> None:
    fuzz(tmp_path, f"{served.gateway}/openenv/maze", origin=served.gateway)


def test_reward_service(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "schemathesis.toml").write_text(REWARD_CONFIG, encoding="utf-8")
    with ServiceProcess("gymfleet-reward", "GYMFLEET_REWARD_", {"redis_url": redis_url}, tmp_path / "log") as one:
        fuzz(tmp_path, one.url)


def test_trainer(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "run") as directory:
        reporter = Reporter(directory, "run")
        reporter.begin("training", step=0, total=1, unit="step")
        with serving(create(reporter, AccessRules())) as url:
            fuzz(tmp_path, url)


@pytest.mark.slow
def test_rollout_service(maze_fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(ROLLOUT_CONFIG, encoding="utf-8")
    fuzz(tmp_path, maze_fleet.rollout.url)
    maze_fleet.rollout.wait_ready()
