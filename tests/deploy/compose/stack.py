"""The compose stack as its user has it: brought up by the compose program, looked at from outside."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from tests.fixtures.paths import ROOT

COMPOSE_FILE: Final = ROOT / "deploy" / "docker-compose.yml"
_POLL_S: Final = 0.2
_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def run(*command: str, timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a program. Raises `AssertionError` with what it said when it fails."""
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=timeout_s, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout[-2000:]} {done.stderr[-4000:]}"
    return done.stdout


def report(figure: str) -> None:
    """Show what was measured; scripts/test-compose.sh lets the tests' output through."""
    sys.stdout.write(f"\n  {figure}\n")


def until(what: str, condition: Callable[[], bool], timeout_s: float) -> float:
    """Wait for `condition`; the seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < timeout_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(_POLL_S)
    return time.monotonic() - began


@dataclass(frozen=True)
class Stack:
    """One project of the compose file, with settings of its own."""

    program: tuple[str, ...]
    """`docker compose` or `docker-compose`."""
    project: str
    secrets: Path
    settings: Mapping[str, str]
    """Variables of the compose file."""
    files: tuple[Path, ...] = (COMPOSE_FILE,)

    def compose(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """A command of the compose program, on this stack; its output."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("GYMFLEET_", "COMPOSE_"))}
        given = {
            "GYMFLEET_COMPOSE_SECRETS": str(self.secrets),
            "GYMFLEET_OS_SECCOMP": str(COMPOSE_FILE.parent / "docker/seccomp-os.json"),
        }
        environment = {**kept, **given, **self.settings}
        files = [part for file in self.files for part in ("-f", str(file))]
        command = (*self.program, "-p", self.project, *files, *arguments)
        return run(*command, timeout_s=timeout_s, environment=environment)

    def take_down(self, *more: str) -> None:
        """Remove the containers of all profiles; volumes stay."""
        settings = {**self.settings, "COMPOSE_PROFILES": "all-envs,reward,cpu,gpu"}
        replace(self, settings=settings).compose("down", "--remove-orphans", "--timeout", "5", *more)

    def secret(self, name: str) -> str:
        """A secret's value."""
        return (self.secrets / name).read_text("ascii").strip()

    def containers(self, service: str | None = None) -> list[str]:
        """Ids of the running containers, in the order of their numbers."""
        labels = [f"label=com.docker.compose.project={self.project}"]
        labels += [f"label=com.docker.compose.service={service}"] if service else []
        filters = [part for label in labels for part in ("--filter", label)]
        ids = run("docker", "ps", "--quiet", "--no-trunc", *filters, timeout_s=60).split()
        return sorted(ids, key=lambda one: self._label(one, "container-number"))

    def inspect(self, container: str) -> dict[str, Any]:
        """What the engine knows about a container."""
        (document,) = json.loads(run("docker", "inspect", container, timeout_s=60))
        return dict(document)

    def _label(self, container: str, name: str) -> str:
        return str(self.inspect(container)["Config"]["Labels"][f"com.docker.compose.{name}"])

    def service_of(self, container: str) -> str:
        """The service that a container runs."""
        return self._label(container, "service")

    def published(self) -> dict[str, list[tuple[str, int]]]:
        """Addresses of this host on which containers can be reached, by service."""
        found: dict[str, list[tuple[str, int]]] = {}
        for container in self.containers():
            bindings = self.inspect(container)["NetworkSettings"]["Ports"].values()
            addresses = [(one["HostIp"], int(one["HostPort"])) for binding in bindings for one in binding or ()]
            if addresses:
                found.setdefault(self.service_of(container), []).extend(addresses)
        return found

    def urls(self, service: str) -> list[str]:
        """Base URLs of a service's replicas."""
        return [f"http://{host}:{port}" for host, port in self.published().get(service, [])]

    def kill(self, container: str) -> None:
        """`kill -9` of a container's first process, seen from the host: `docker kill` would also end its restarts."""
        os.kill(int(self.inspect(container)["State"]["Pid"]), signal.SIGKILL)

    def restarted(self, container: str, since: str) -> bool:
        """Whether a container runs again, and was started after `since`, its `StartedAt` of before."""
        state = self.inspect(container)["State"]
        return bool(state["Running"]) and state["StartedAt"] != since

    def wait_ready(self, service: str, *, replicas: int = 1, timeout_s: float) -> list[str]:
        """URLs of a service once all its replicas answer `/readyz`."""

        def ready() -> bool:
            urls = self.urls(service)
            return len(urls) == replicas and all(answers(f"{url}/readyz") for url in urls)

        until(f"{service} ready", ready, timeout_s)
        return self.urls(service)

    def memory_bytes(self) -> dict[str, int]:
        """What each running container holds, by name."""
        shown = run(
            "docker", "stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", *self.containers(), timeout_s=60
        )
        lines = [line.split()[:2] for line in shown.splitlines()]
        return {name.removeprefix(self.project).strip("-_"): _size(used) for name, used in lines}

    def redis(self, *command: str) -> str:
        """What Redis answers, asked inside its container."""
        script = "REDISCLI_AUTH=$(sed -n 's/^requirepass //p' /run/secrets/redis.conf) redis-cli " + shlex.join(command)
        return self.compose("exec", "-T", "redis", "sh", "-c", script, timeout_s=60).strip()


def answers(url: str) -> bool:
    """Whether a GET succeeds."""
    try:
        return httpx.get(url, trust_env=False, timeout=5).is_success
    except httpx.TransportError:
        return False


def _size(text: str) -> int:
    number = text.rstrip("BKMGi")
    return int(float(number) * _UNITS[text[len(number) :]])


def compose_program() -> Sequence[str]:
    """The newer of the two programs that is here."""
    has_plugin = subprocess.run(["docker", "compose", "version"], check=False, capture_output=True, timeout=60)
    return ("docker", "compose") if has_plugin.returncode == 0 else ("docker-compose",)
