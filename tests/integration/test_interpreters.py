"""Environments with packages of their own: what a file says, what is refused, and that it is served with them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gymfleet_client import SyncGatewayClient
from gymfleet_contracts.session import OpenSession
from gymfleet_env_server.catalogue import EnvironmentUnavailable
from gymfleet_env_server.interpreters import packages_of

from tests.fixtures import gateway_fleet
from tests.fixtures.ports import free_port
from tests.integration.test_cli_fleet import GYMFLEET

BLOCK = """# /// script
# dependencies = ["idna==3.4"]
# ///
"""
WORLD = """
import idna
from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import GeneratedTasks


class Version(Environment[int]):
    name = "version"
    version = "1"
    summary = "Say the version of a package"
    instructions = "Say it."
    max_turns = 2

    @classmethod
    def task_source(cls, data):
        return GeneratedTasks(cls.name, lambda rng, level: rng.randrange(10**6), str, levels=("only",))

    def reset(self, task, seed):
        return idna.__version__

    def step(self, action):
        return Outcome("no")
"""
SERVER = str(Path(sys.executable).with_name("gymfleet-env-server"))


def file_of(directory: Path, text: str, name: str = "world.py") -> str:
    path = directory / name
    path.write_text(text)
    return str(path)


def test_a_file_without_a_block_names_none(tmp_path: Path) -> None:
    assert packages_of(file_of(tmp_path, WORLD)) == ()
    assert packages_of("maze") == ()
    assert packages_of(str(tmp_path / "absent.py")) == ()


def test_a_block_is_read_as_pep_723_has_it(tmp_path: Path) -> None:
    lines = [
        "# /// script",
        '# requires-python = ">=3.11"',
        "# dependencies = [",
        '#   "b==2",',
        "#",
        '#   "a>=1",',
        "# ]",
    ]
    text = "\n".join(["#!/usr/bin/env python", *lines, "# ///", ""])

    assert packages_of(file_of(tmp_path, text)) == ("a>=1", "b==2")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('dependencies = ["--index-url=http://evil"]', "dependencies: Expected package name"),
        ('dependencies = ["-r /etc/passwd"]', "dependencies: Expected package name"),
        ('dependencies = ["idna==3.4 --index-url=http://evil"]', "dependencies: Expected"),
        ('requires-python = "<3.9"', "needs Python <3.9, and gymfleet runs on 3"),
        ('requires-python = "new"', "requires-python: Invalid specifier"),
        ('dependencies = "idna"', "dependencies must be a list"),
        ("dependencies = [3]", "dependencies must be a list"),
        ("dependencies = [", "is no TOML"),
        ('packages = ["idna"]', "has packages: PEP 723 knows none"),
    ],
)
def test_what_is_no_list_of_packages_is_refused(said: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnavailable, match=told):
        packages_of(file_of(tmp_path, f"# /// script\n# {said}\n# ///\n"))


def test_two_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnavailable, match="has 2 blocks"):
        packages_of(file_of(tmp_path, f"{BLOCK}\n{BLOCK}"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("interpreters")


def server(*arguments: str, home: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "XDG_CACHE_HOME": str(home)}
    return subprocess.run(
        [SERVER, *arguments], capture_output=True, text=True, timeout=240, check=False, env=environment
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_is_served_with_its_packages_and_everybody_else_with_theirs(home: Path, tmp_path: Path) -> None:
    import idna  # noqa: PLC0415

    assert idna.__version__ != "3.4", "choose another version that differs from what is installed"
    file = file_of(tmp_path, BLOCK + WORLD)
    made = server("--prepare", file, home=home)
    assert made.returncode == 0, made.stderr
    assert "making an interpreter with idna==3.4" in made.stderr

    again = server("--describe", file, "maze", home=home)

    assert "making" not in again.stderr
    described = [json.loads(line) for line in again.stdout.splitlines()]
    assert sorted(one["spec"]["name"] for one in described) == ["maze", "version"]
    checked = server("--check-options", file, "maze", home=home)
    assert json.loads(checked.stdout) == {file: "version", "maze": "maze"}
    one = gateway_fleet.ServiceProcess(
        ["gymfleet-env-server", file],
        {"GYMFLEET_ENV_PORT": str(port := free_port()), "XDG_CACHE_HOME": str(home)},
        port, tmp_path / "server.log",
    )  # fmt: skip
    with gateway_fleet.running(one), SyncGatewayClient(one.url) as client:
        assert client.open(OpenSession(env="version", split="test", task_index=0)).observation == "3.4"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_cannot_be_installed_is_told_in_one_line(home: Path, tmp_path: Path) -> None:
    file = file_of(tmp_path, BLOCK.replace("idna==3.4", "idna==0.0.1.dev999") + WORLD)

    done = server(file, home=home)

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: pip cannot install idna==0.0.1.dev999: ")


@pytest.mark.slow
def test_it_is_served_alone(home: Path, tmp_path: Path) -> None:
    done = server(file_of(tmp_path, BLOCK + WORLD), "maze", home=home)

    assert done.returncode == 2
    assert "names packages of its own: serve it alone" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_line_makes_it_first_and_tells_what_fails(home: Path, tmp_path: Path) -> None:
    good = file_of(tmp_path, BLOCK + WORLD)
    bad = file_of(tmp_path, BLOCK.replace("3.4", "0.0.1.dev999") + WORLD, "bad.py")

    def up(file: str) -> "subprocess.CompletedProcess[str]":
        command = [GYMFLEET, "up", "--env", file, "--state-dir", str(tmp_path / "state"), "--ports-from", "18300"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(home), "COLUMNS": "160"}
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)

    failed, served = up(bad), up(good)

    try:
        assert failed.returncode == 2
        assert "error: pip cannot install idna==0.0.1.dev999: " in failed.stderr
        assert served.returncode == 0, served.stderr
        with SyncGatewayClient("http://127.0.0.1:18300") as client:
            assert client.open(OpenSession(env="version", split="test", task_index=0)).observation == "3.4"
    finally:
        subprocess.run([GYMFLEET, "down", "--state-dir", str(tmp_path / "state")], check=False, capture_output=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_files_are_imported_with_its_packages(home: Path, tmp_path: Path) -> None:
    file = file_of(tmp_path, BLOCK + WORLD)
    (tmp_path / "files").mkdir()
    command = [GYMFLEET, "data", "import", file, str(tmp_path / "files")]
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "GYMFLEET_HOME": str(tmp_path / "kept"), "COLUMNS": "160"}

    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)

    assert done.returncode == 0, done.stderr
    assert "version: generated" in done.stdout
