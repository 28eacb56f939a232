"""The local fleet: which command and which settings each service gets.

Settings are environment variables; every one that is set here is a field of the
service's own settings model, which refuses names it does not know.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gymfleet_contracts.recipe import Recipe
from pydantic import JsonValue

from gymfleet_client.supervisor.errors import FleetError
from gymfleet_client.supervisor.ports import LOOPBACK, free_ports, row_of_ports
from gymfleet_client.supervisor.service import Service, console_script

REDIS = "redis"
GATEWAY = "env-gateway"
ROLLOUT = "rollout"
REWARD = "reward"
TRAINER = "trainer"
ENGINE_START_TIMEOUT_S = 600.0
"""vLLM loads and may compile its kernels first."""


def env_server_name(env: str) -> str:
    """The service that hosts an environment, given as a name, `package.module:Class` or the path of a file."""
    last = Path(env).stem.rpartition(":")[2] if "/" in env or env.endswith(".py") else env.rpartition(":")[2]
    return "env-" + re.sub(r"[^a-z0-9_]+", "-", last.lower()).strip("-")


@dataclass(frozen=True, slots=True)
class Ports:
    """One port per service name."""

    by_name: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.by_name[name]

    @property
    def redis_url(self) -> str:
        """Redis, as the services want it."""
        return f"redis://{LOOPBACK}:{self[REDIS]}/0"

    def url(self, name: str) -> str:
        """A service's HTTP address."""
        return f"http://{LOOPBACK}:{self[name]}"


def service_names(envs: Sequence[str]) -> list[str]:
    """All names of a fleet, in the order in which `--ports-from` counts."""
    return [GATEWAY, REDIS, ROLLOUT, REWARD, TRAINER, *(env_server_name(env) for env in envs)]


def choose_ports(envs: Sequence[str], ports_from: int | None) -> Ports:
    """A checked row from `ports_from`, or any free ones. Raises `PortInUse`, which names port and service."""
    names = service_names(envs)
    if len(set(names)) < len(names):
        raise FleetError(f"two of the environments {', '.join(envs)} share a name; serve one of them")
    ports = free_ports(len(names)) if ports_from is None else row_of_ports(ports_from, names)
    return Ports(dict(zip(names, ports, strict=True)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Services of one local fleet."""

    directory: Path
    ports: Ports
    envs: tuple[str, ...]
    gateway_secret: str
    data: Mapping[str, Path] = field(default_factory=dict)
    """Directories of benchmark files, by environment."""
    options: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    """Settings of environments, by environment."""

    def redis(self) -> Service:
        """A durable Redis, its file in the fleet's directory."""
        port = self.ports[REDIS]
        data = self.directory / "redis"
        argv = (console_script("gymfleet-redis"), "--port", str(port), "--dir", str(data.resolve()))
        return Service(name=REDIS, argv=argv, port=port, probe="redis", start_timeout_s=60)

    def env_servers(self) -> list[Service]:
        """One server per environment."""
        return [self.env_server(env) for env in self.envs]

    def env_server(self, *envs: str) -> Service:
        """A server that hosts `envs`, under the name of the first."""
        name = env_server_name(envs[0])
        data = {env: str(path) for env, path in self.data.items() if self._serves(envs, env)}
        options = {env: dict(given) for env, given in self.options.items() if given and self._serves(envs, env)}
        return Service(
            name=name,
            argv=(console_script("gymfleet-env-server"), *envs),
            port=self.ports[name],
            env={
                "GYMFLEET_ENV_HOST": LOOPBACK,
                "GYMFLEET_ENV_PORT": str(self.ports[name]),
                **({"GYMFLEET_ENV_DATA": json.dumps(data)} if data else {}),
                **({"GYMFLEET_ENV_OPTIONS": json.dumps(options)} if options else {}),
            },
        )

    def _serves(self, envs: Sequence[str], name: str) -> bool:
        """Whether a server of `envs` hosts the environment; a file or class does not say its name."""
        return name in envs or len(self.envs) == 1

    def gateway(self) -> Service:
        """Routes to the env servers."""
        replicas = [self.ports.url(env_server_name(env)) for env in self.envs]
        env = {
            "GYMFLEET_GATEWAY_PORT": str(self.ports[GATEWAY]),
            "GYMFLEET_GATEWAY_REPLICAS": json.dumps(replicas),
            "GYMFLEET_GATEWAY_SECRET": self.gateway_secret,
            "GYMFLEET_GATEWAY_REDIS_URL": self.ports.redis_url,
        }
        return Service(name=GATEWAY, argv=(console_script("gymfleet-env-gateway"),), port=self.ports[GATEWAY], env=env)

    def reward(self) -> Service:
        """Scores trajectories."""
        env = {
            "GYMFLEET_REWARD_PORT": str(self.ports[REWARD]),
            "GYMFLEET_REWARD_REDIS_URL": self.ports.redis_url,
        }
        return Service(name=REWARD, argv=(console_script("gymfleet-reward"),), port=self.ports[REWARD], env=env)

    def rollout(self, model: str, recipe: Recipe | None = None) -> Service:
        """Plays episodes with a model; engine settings come from the recipe's `[inference]`."""
        env = {
            "GYMFLEET_ROLLOUT_PORT": str(self.ports[ROLLOUT]),
            "GYMFLEET_ROLLOUT_REDIS_URL": self.ports.redis_url,
            "GYMFLEET_ROLLOUT_GATEWAY_URL": self.ports.url(GATEWAY),
            "GYMFLEET_ROLLOUT_MODEL": model,
            **_shared_cores(),
        }
        if recipe is not None:
            env |= _engine_settings(recipe)
        return Service(
            name=ROLLOUT,
            argv=(console_script("gymfleet-rollout"),),
            port=self.ports[ROLLOUT],
            env=env,
            start_timeout_s=ENGINE_START_TIMEOUT_S,
        )

    def trainer(self, command: str, *arguments: str) -> Service:
        """A command of the trainer, which ends by itself: `build`, `run` or `eval`."""
        env = {
            "GYMFLEET_TRAINER_PORT": str(self.ports[TRAINER]),
            "GYMFLEET_TRAINER_REDIS_URL": self.ports.redis_url,
            "GYMFLEET_TRAINER_GATEWAY_URL": self.ports.url(GATEWAY),
            "GYMFLEET_TRAINER_ROLLOUT_URL": self.ports.url(ROLLOUT),
            **_shared_cores(),
        }
        return Service(
            name=f"{TRAINER}-{command}",
            argv=(console_script("gymfleet-trainer"), command, *arguments),
            port=self.ports[TRAINER],
            env=env,
            probe="none",
        )


def _shared_cores() -> dict[str, str]:
    """OpenMP threads that wait for each other sleep soon instead of spinning.

    Engine and trainer share the machine's cores, with each other and with whatever else
    runs there: a thread that spins keeps the one it waits for from running, and an
    update becomes ten times slower.
    """
    return {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}


def _engine_settings(recipe: Recipe) -> dict[str, str]:
    inference = recipe.inference
    settings = {
        "BACKEND": inference.backend,
        "DTYPE": inference.dtype,
        "MAX_MODEL_LEN": str(inference.max_model_len),
        "MAX_NUM_SEQS": str(inference.max_num_seqs),
        "MAX_NUM_BATCHED_TOKENS": str(inference.max_num_batched_tokens),
        "KV_CACHE_GIB": str(inference.kv_cache_gib),
        "ENFORCE_EAGER": str(inference.enforce_eager).lower(),
        "SEED": str(recipe.seed),
    }
    if inference.backend == "server":
        settings["SERVER_URLS"] = json.dumps(inference.urls)
    return {f"GYMFLEET_ROLLOUT_{name}": value for name, value in settings.items()}
