"""The whole fleet as real processes on free ports, for tests that need more than one service."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import httpx
import pytest

from tests.fixtures import preloaded
from tests.fixtures.ports import free_port
from tests.fixtures.redis_server import RedisServer
from tests.models import build_tiny_model

READY_TIMEOUT_S: Final = 150.0
"""vLLM takes 25 to 60 s to start on two shared cores."""
_STOP_TIMEOUT_S: Final = 20.0


def script(name: str) -> str:
    """A console script of the environment that runs the tests."""
    return str(Path(sys.executable).with_name(name))


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment without gymfleet's settings, plus the given ones."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GYMFLEET_")}
    return inherited | preloaded.THREADS | settings


@dataclass
class ServiceProcess:
    """One console script, its settings, and where it answers."""

    name: str
    command: Sequence[str]
    port: int
    settings: Mapping[str, str]
    log: Path
    process: preloaded.Process | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process; `wait_ready` says when it can work."""
        with self.log.open("ab") as log:
            self.process = preloaded.start(self.command, clean_environment(**self.settings), log)

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once `/readyz` says 200; RuntimeError with the log's end when it dies or takes too long."""
        deadline = time.monotonic() + timeout_s
        answer = "no answer"
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                raise RuntimeError(f"{self.name} died: {self.tail()}")
            try:
                response = httpx.get(f"{self.url}/readyz", timeout=15.0, trust_env=False)
            except httpx.HTTPError as error:
                answer = repr(error)
            else:
                if response.is_success:
                    return
                answer = response.text
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} is not ready after {timeout_s:g} s ({answer}): {self.tail()}")

    def stop(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """End the process; SIGKILL where it does not go."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(sig)
            try:
                self.process.wait(timeout=_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def tail(self, num_chars: int = 3000) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-num_chars:]


class Fleet:
    """Redis, env servers, the gateway, reward services and rollout services with an embedded vLLM each.

    Args:
        directory: for logs and Redis.
        model: what the rollout service loads.
        environment: what the env server serves.
        options: of the environment.
        rollout: further `GYMFLEET_ROLLOUT_*` settings, without the prefix.
        scale: how many env servers, reward services and rollout services there are.
    """

    def __init__(
        self,
        directory: Path,
        model: Path,
        *,
        environment: str = "maze",
        options: Mapping[str, str] | None = None,
        rollout: Mapping[str, str] | None = None,
        scale: int = 1,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        redis_directory = directory / "redis"
        redis_directory.mkdir(exist_ok=True)
        self._directory = directory
        self._model = model
        self._rollout_settings = dict(rollout or {})
        self.redis = RedisServer(redis_directory)
        served = {} if options is None else {"OPTIONS": json.dumps({environment: options})}
        self.envs = [self._service("env-server", "ENV", served, environment) for _ in range(scale)]
        self.gateway = self._service(
            "env-gateway",
            "GATEWAY",
            {"REPLICAS": json.dumps([env.url for env in self.envs]), "SECRET": secrets.token_hex(16)},
        )
        self.rewards = [
            self._service("reward", "REWARD", {"REDIS_URL": self.redis.url, "LEASE_S": "3"}) for _ in range(scale)
        ]
        self.rollouts = [self.new_rollout() for _ in range(scale)]
        self.env, self.reward, self.rollout = self.envs[0], self.rewards[0], self.rollouts[0]

    @property
    def services(self) -> list[ServiceProcess]:
        """All but Redis, in the order of their start."""
        return [*self.envs, self.gateway, *self.rewards, *self.rollouts]

    def new_rollout(self, **settings: str) -> ServiceProcess:
        """A rollout service that works with this fleet; not started, and not among `rollouts`."""
        fields = {"REDIS_URL": self.redis.url, "GATEWAY_URL": self.gateway.url, "MODEL": str(self._model)}
        return self._service("rollout", "ROLLOUT", {**fields, **self._rollout_settings, **settings})

    @contextmanager
    def other_rollout(self, **settings: str) -> Iterator[httpx.Client]:
        """A rollout service with settings of its own, as a client of it; the fleet's own rests meanwhile."""
        self.rollout.stop()
        service = self.new_rollout(**settings)
        service.start()
        try:
            service.wait_ready()
            with httpx.Client(base_url=service.url, timeout=60, trust_env=False) as client:
                yield client
        finally:
            service.stop()
            self.rollout.start()
            self.rollout.wait_ready()

    def _service(self, name: str, prefix: str, settings: Mapping[str, str], *arguments: str) -> ServiceProcess:
        port = free_port()
        given = {f"GYMFLEET_{prefix}_{key}": value for key, value in {"PORT": str(port), **settings}.items()}
        log = self._directory / f"{name}-{port}.log"
        return ServiceProcess(name, [script(f"gymfleet-{name}"), *arguments], port, given, log)

    def trainer_settings(self, **more: str) -> dict[str, str]:
        """Environment variables of a trainer that works with this fleet, on a port of its own."""
        settings = {
            "REDIS_URL": self.redis.url,
            "GATEWAY_URL": self.gateway.url,
            "ROLLOUT_URL": ",".join(rollout.url for rollout in self.rollouts),
            "PORT": str(free_port()),
            "TORCH_THREADS": "1",
            "LEASE_S": "3",
            "STALL_TIMEOUT_S": "60",
            **more,
        }
        return {f"GYMFLEET_TRAINER_{name}": value for name, value in settings.items()}

    def start(self) -> None:
        """Start everything at once and wait until everything is ready."""
        self.redis.start()
        for service in self.services:
            service.start()
        for service in self.services:
            service.wait_ready()

    def stop(self) -> None:
        """End everything."""
        for service in reversed(self.services):
            service.stop()
        self.redis.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 0.1 M parameters that transformers and vLLM load."""
    return build_tiny_model(tmp_path_factory.mktemp("models") / "tiny", tie_embeddings=False, seed=0)


@pytest.fixture(scope="session")
def maze_fleet(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Fleet]:
    """One fleet for all tests that need it: vLLM is slow to start. Runs on it do not see each other."""
    with Fleet(tmp_path_factory.mktemp("fleet"), tiny_model, rollout={"LEASE_S": "3"}) as fleet:
        yield fleet
