"""The processes of a running stack: those of `gymfleet train`, or the containers of a compose project."""

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import httpx
import psutil
from gymfleet_cli.run_directory import RUN_STATE
from gymfleet_cli.supervisor.plan import GATEWAY, REDIS, REWARD, ROLLOUT, TRAINER, env_server_name
from gymfleet_cli.supervisor.state import read_state
from redis import Redis
from redis.exceptions import RedisError

from benchmarks.processes import family

PROBE_S: Final = 2.0
_SHARD: Final = "gymfleet_env_server.shards.shard"


class Kind(StrEnum):
    """Every kind of process that a training run needs."""

    ENV_SERVER = "env server"
    ENV_SHARD = "env shard"
    GATEWAY = "gateway"
    REWARD = "reward"
    ROLLOUT = "rollout"
    TRAINER = "trainer"
    REDIS = "redis"


@dataclass(frozen=True, slots=True)
class Process:
    """A living process of a service, and the service's URL."""

    pid: int
    url: str


class Stack(Protocol):
    """The inspection of a stack, for one way of running it."""

    run_dir: Path
    api_key: str | None
    """The key that the gateway requires."""

    def service(self, kind: Kind) -> Process | None:
        """Return the process that runs the service; None while there is none."""

    def num_restarts(self) -> int:
        """Return how often services have been started again so far, by the supervisor or the restart policy."""


class LocalFleet:
    """The services started by `gymfleet train`, from its `fleet.json`."""

    api_key: str | None = None

    def __init__(self, run_dir: Path, env: str) -> None:
        self.run_dir = run_dir
        self._names = {
            Kind.ENV_SERVER: env_server_name(env),
            Kind.GATEWAY: GATEWAY,
            Kind.REWARD: REWARD,
            Kind.ROLLOUT: ROLLOUT,
            Kind.TRAINER: f"{TRAINER}-run",
            Kind.REDIS: REDIS,
        }

    def service(self, kind: Kind) -> Process | None:
        """Return the process if alive: dead ones stay in the file until the supervisor notices."""
        state = read_state(self.run_dir / RUN_STATE)
        for record in state.services if state else ():
            if record.name == self._names[kind] and record.process.alive:
                return Process(record.process.pid, record.url)
        return None

    def num_restarts(self) -> int:
        """Return the number of restarts in the supervisor's log."""
        log = self.run_dir / RUN_STATE / "logs" / "supervisor.log"
        lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
        return sum(json.loads(line)["event"] == "service.restarted" for line in lines)


class ComposeProject:
    """The containers of a compose project, reached at their own addresses; needs root on the engine's machine.

    A process is killed by its number on the host: `docker kill` would count as a person's
    request, after which the restart policy leaves the container down. `secrets` is the directory
    filled by deploy/compose/secrets.sh.
    """

    PORTS: Final = {
        Kind.ENV_SERVER: 8110,
        Kind.GATEWAY: 8200,
        Kind.REWARD: 8203,
        Kind.ROLLOUT: 8202,
        Kind.TRAINER: 8204,
    }

    def __init__(self, project: str, run_dir: Path, env: str, secrets: Path) -> None:
        self.run_dir = run_dir
        self.api_key: str | None = (secrets / "gateway_api_key").read_text(encoding="utf-8").strip()
        self._project = project
        self._redis = urlsplit((secrets / "redis_url").read_text(encoding="utf-8").strip())
        self._names = {
            Kind.ENV_SERVER: f"env-{env}",
            Kind.GATEWAY: "env_gateway",
            Kind.REWARD: "reward",
            Kind.ROLLOUT: "rollout",
            Kind.TRAINER: "trainer",
            Kind.REDIS: "redis",
        }

    def service(self, kind: Kind) -> Process | None:
        """Return the first running replica."""
        for container in self._containers(f"label=com.docker.compose.service={self._names[kind]}"):
            pid: int = container["State"]["Pid"]
            addresses = [network["IPAddress"] for network in container["NetworkSettings"]["Networks"].values()]
            if pid and any(addresses):
                return Process(pid, self._url(kind, next(filter(None, addresses))))
        return None

    def num_restarts(self) -> int:
        """Return the engine's count of restarts."""
        return sum(container["RestartCount"] for container in self._containers())

    def _containers(self, *filters: str) -> list[dict[str, Any]]:
        wanted = (f"label=com.docker.compose.project={self._project}", *filters)
        found = sorted(_docker("ps", "--all", "--quiet", *(p for one in wanted for p in ("--filter", one))).split())
        inspected: list[dict[str, Any]] = json.loads(_docker("inspect", *found)) if found else []
        return inspected

    def _url(self, kind: Kind, address: str) -> str:
        if kind is Kind.REDIS:
            return self._redis._replace(netloc=f":{self._redis.password}@{address}:{self._redis.port}").geturl()
        return f"http://{address}:{self.PORTS[kind]}"


def victim(stack: Stack, kind: Kind) -> Process | None:
    """Return the process to kill; a shard is found below its env server."""
    if kind is not Kind.ENV_SHARD:
        return stack.service(kind)
    front = stack.service(Kind.ENV_SERVER)
    shards = shard_pids(front.pid) if front else []
    return Process(shards[0], front.url) if front and shards else None


def shard_pids(front: int) -> list[int]:
    """Return the worker processes of an env server, in the order of their start."""
    try:
        return sorted(pid for pid in family(front) if _SHARD in psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:  # one of them ended while it was looked at
        return []


def is_ready(stack: Stack, kind: Kind, killed: int) -> bool:
    """Return whether process `killed` has a successor and the service answers that it is ready. Asks once."""
    process = victim(stack, kind)
    if process is None or process.pid == killed:
        return False
    return _pings(process.url) if kind is Kind.REDIS else _answers(f"{process.url}/readyz")


def kill(process: Process) -> None:
    """`kill -9`; no chance to say goodbye."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(process.pid).kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=PROBE_S, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _pings(url: str) -> bool:
    try:
        with Redis.from_url(url, socket_timeout=PROBE_S, socket_connect_timeout=PROBE_S) as client:
            return bool(client.ping())
    except RedisError:  # loading its file, too
        return False


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout
