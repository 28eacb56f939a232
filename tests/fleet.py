"""The whole fleet as real processes on free ports, for tests that need more than one service."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import httpx
import pytest

from tests.fixtures.redis_server import RedisServer, free_port
from tests.models import build_tiny_model

READY_TIMEOUT_S: Final = 150.0
"""vLLM takes 25 to 60 s to start on two shared cores."""
_STOP_TIMEOUT_S: Final = 20.0
_THREADS: Final = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def script(name: str) -> str:
    """A console script of the environment that runs the tests."""
    return str(Path(sys.executable).with_name(name))


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's environment without gymfleet's settings, plus the given ones."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GYMFLEET_")}
    return inherited | _THREADS | settings


@dataclass
class ServiceProcess:
    """One console script, its settings, and where it answers."""

    name: str
    command: Sequence[str]
    port: int
    settings: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the process; `wait_ready` says when it can work."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                list(self.command), env=clean_environment(**self.settings), stdout=log, stderr=subprocess.STDOUT
            )

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
    """Redis, one env server, the gateway, the reward service and the rollout service with an embedded vLLM.

    Args:
        directory: for logs and Redis.
        model: what the rollout service loads.
        environment: what the env server serves.
        rollout: further `GYMFLEET_ROLLOUT_*` settings, without the prefix.
    """

    def __init__(
        self, directory: Path, model: Path, *, environment: str = "maze", rollout: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        redis_directory = directory / "redis"
        redis_directory.mkdir(exist_ok=True)
        self._directory = directory
        self.redis = RedisServer(redis_directory)
        ports = {name: free_port() for name in ("env", "gateway", "reward", "rollout")}
        local = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        self.env = self._service(
            "env-server",
            ports["env"],
            {"GYMFLEET_ENV_PORT": str(ports["env"])},
            [environment],
        )
        self.gateway = self._service(
            "env-gateway",
            ports["gateway"],
            {
                "GYMFLEET_GATEWAY_PORT": str(ports["gateway"]),
                "GYMFLEET_GATEWAY_REPLICAS": json.dumps([local["env"]]),
                "GYMFLEET_GATEWAY_SECRET": secrets.token_hex(16),
            },
        )
        self.reward = self._service(
            "reward",
            ports["reward"],
            {
                "GYMFLEET_REWARD_PORT": str(ports["reward"]),
                "GYMFLEET_REWARD_REDIS_URL": self.redis.url,
                "GYMFLEET_REWARD_LEASE_S": "3",
            },
        )
        self.rollout = self._service(
            "rollout",
            ports["rollout"],
            {
                "GYMFLEET_ROLLOUT_PORT": str(ports["rollout"]),
                "GYMFLEET_ROLLOUT_REDIS_URL": self.redis.url,
                "GYMFLEET_ROLLOUT_GATEWAY_URL": local["gateway"],
                "GYMFLEET_ROLLOUT_MODEL": str(model),
                **{f"GYMFLEET_ROLLOUT_{name}": value for name, value in (rollout or {}).items()},
            },
        )
        self.services = (self.env, self.gateway, self.reward, self.rollout)

    def _service(
        self, name: str, port: int, settings: Mapping[str, str], arguments: Sequence[str] = ()
    ) -> ServiceProcess:
        command = [script(f"gymfleet-{name}"), *arguments]
        return ServiceProcess(name, command, port, settings, self._directory / f"{name}.log")

    def trainer_settings(self, **more: str) -> dict[str, str]:
        """Environment variables of a trainer that works with this fleet, on a port of its own."""
        settings = {
            "REDIS_URL": self.redis.url,
            "GATEWAY_URL": self.gateway.url,
            "ROLLOUT_URL": self.rollout.url,
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
