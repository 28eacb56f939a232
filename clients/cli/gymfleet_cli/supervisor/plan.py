"""The local fleet: the command and the settings of each service.

Settings are environment variables; every variable set here is a field of the service's
own settings model, which refuses unknown names.
"""

import hashlib
import hmac
import importlib.util
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gymfleet_contracts.recipe_sections import ScaleSection
from pydantic import JsonValue

from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_cli.supervisor.placement import Placement
from gymfleet_cli.supervisor.ports import LOOPBACK, free_ports, row_of_ports
from gymfleet_cli.supervisor.service import Service, console_script
from gymfleet_cli.supervisor.sockets import socket_path

REDIS = "redis"
GATEWAY = "env-gateway"
ROLLOUT = "rollout"
REWARD = "reward"
TRAINER = "trainer"
ENV_SERVER = "env-server"
OPTIONS_VARIABLE = "GYMFLEET_ENV_OPTIONS"
"""Options of an env server's environments by name, as JSON."""
DATA_VARIABLE = "GYMFLEET_ENV_DATA"
"""Directories of benchmark files, by environment, as JSON."""
MODELS_VARIABLE = "GYMFLEET_ENV_MODELS"
"""Endpoints for the models that environments ask, by environment, as JSON."""
REWARD_MODELS_VARIABLE = "GYMFLEET_REWARD_MODELS"
"""Reward models, by name, as JSON."""
ENGINE_START_TIMEOUT_S = 600.0
"""The timeout is long because vLLM first loads, and may compile, its kernels."""
ONE_OF_EACH = ScaleSection()


def env_server_name(env: str) -> str:
    """Name the service that hosts an environment, given as a name, `package.module:Class` or the path of a file."""
    last = Path(env).stem.rpartition(":")[2] if "/" in env or env.endswith(".py") else env.rpartition(":")[2]
    return "env-" + re.sub(r"[^a-z0-9_]+", "-", last.lower()).strip("-")


@dataclass(frozen=True, slots=True)
class Ports:
    """One port per service name."""

    by_name: Mapping[str, int]

    def __getitem__(self, name: str) -> int:
        return self.by_name[name]

    def url(self, name: str) -> str:
        """Return a service's HTTP address."""
        return f"http://{LOOPBACK}:{self[name]}"


def replica_names(name: str, count: int) -> list[str]:
    """Return `name`, `name-2`, `name-3` and so on."""
    return [name if number == 1 else f"{name}-{number}" for number in range(1, count + 1)]


def service_names(envs: Sequence[str], scale: ScaleSection = ONE_OF_EACH) -> list[str]:
    """Return all services with ports, in the order of `--ports-from`: the first replica of each, then the others."""
    counts = {GATEWAY: scale.gateways, ROLLOUT: scale.rollouts, REWARD: scale.rewards, TRAINER: 1}
    first = [*counts, *(env_server_name(env) for env in envs)]
    return first + [more for name in first for more in replica_names(name, counts.get(name, scale.env_servers))[1:]]


def choose_ports(envs: Sequence[str], ports_from: int | None, scale: ScaleSection = ONE_OF_EACH) -> Ports:
    """Choose a checked row from `ports_from`, or any free ports. Raises `PortInUse`, which names port and service."""
    names = service_names(envs, scale)
    if len(set(names)) < len(names):
        raise FleetError(f"two of the environments {', '.join(envs)} share a name; serve one of them")
    ports = free_ports(len(names)) if ports_from is None else row_of_ports(ports_from, names)
    return Ports(dict(zip(names, ports, strict=True)))


@dataclass(frozen=True, slots=True)
class Plan:
    """The services of one local fleet."""

    directory: Path
    ports: Ports
    envs: tuple[str, ...]
    gateway_secret: str
    data: Mapping[str, Path] = field(default_factory=dict)
    """Directories of benchmark files, by environment."""
    options: Mapping[str, Mapping[str, Mapping[str, JsonValue]]] = field(default_factory=dict)
    """The value of `OPTIONS_VARIABLE` for each of `envs`."""
    components: tuple[str, ...] = ()
    """References of components that requests may use in addition to named ones."""
    reward_models: Mapping[str, JsonValue] = field(default_factory=dict)
    """Tables of reward models, by name, in addition to those of the user's own variable."""
    scale: ScaleSection = ONE_OF_EACH
    """The number of processes of each service."""
    placement: Placement = field(default_factory=Placement)
    """The GPUs of trainer and engines."""

    def key(self, service: str) -> str:
        """Return the key that callers send to a service. Other users of this machine reach its ports, not its key."""
        return hmac.new(self.gateway_secret.encode(), service.encode(), hashlib.sha256).hexdigest()

    def _seal_keys(self) -> tuple[str, str]:
        """Return the private key of the reward services and the public one: the same whenever a run is resumed.

        They are empty if the package for it, which is installed with the reward service, is missing.
        """
        if importlib.util.find_spec("cryptography") is None:
            return "", ""
        from gymfleet_kit import sealing  # noqa: PLC0415 - not everybody has the package, and it takes long to import

        private = sealing.private_key_of(hmac.new(self.gateway_secret.encode(), b"seal", hashlib.sha256).digest())
        return private, sealing.Opener(private).public_key

    @property
    def keys(self) -> dict[str, str]:
        """Return the keys of all services that require one. The gateway requires none: it serves this machine only."""
        return {service: self.key(service) for service in (ENV_SERVER, REWARD, ROLLOUT, TRAINER)}

    def redis(self) -> Service:
        """Return a durable Redis with its file in the fleet's directory; only this user may open its socket."""
        data = (self.directory / "redis").resolve()
        path = socket_path(data)
        argv = (console_script("gymfleet-redis"), "--socket", str(path), "--dir", str(data))
        return Service(name=REDIS, argv=argv, socket=path, probe="redis", start_timeout_s=60)

    def env_servers(self) -> list[Service]:
        """Return the servers of each environment."""
        return [
            self.env_server(env, name=name)
            for env in self.envs
            for name in replica_names(env_server_name(env), self.scale.env_servers)
        ]

    def env_server(self, *envs: str, name: str | None = None) -> Service:
        """Return a server that hosts `envs`, named after the first of them."""
        name = name or env_server_name(envs[0])
        return Service(
            name=name,
            argv=(console_script("gymfleet-env-server"), *envs),
            port=self.ports[name],
            env={
                "GYMFLEET_ENV_HOST": LOOPBACK,
                "GYMFLEET_ENV_PORT": str(self.ports[name]),
                "GYMFLEET_ENV_API_KEY": self.key(ENV_SERVER),
                **({"GYMFLEET_ENV_SEAL_KEY": public_key} if (public_key := self._seal_keys()[1]) else {}),
                **({"GYMFLEET_ENV_SHARDS": str(self.scale.env_shards)} if self.scale.env_shards > 1 else {}),
                **self._data_of(envs),
                **self._options_of(envs),
                **self._models_of(envs),
            },
        )

    def _data_of(self, envs: Sequence[str]) -> dict[str, str]:
        """Return a server's own part of the data. Raises `FleetError` for data of an environment not served."""
        inherited = _inherited(DATA_VARIABLE, '{"webshop": "DIRECTORY"}')
        data = {**inherited, **{env: str(path) for env, path in self.data.items()}}
        if unserved := sorted(env for env in data if not self._serves(self.envs, env)):
            raise FleetError(
                f"there is data for {', '.join(unserved)}, but served are {', '.join(self.envs)}; a file or a class "
                "that has data is served alone"
            )
        own = {env: path for env, path in data.items() if self._serves(envs, env)}
        return {DATA_VARIABLE: json.dumps(own)} if own or DATA_VARIABLE in os.environ else {}

    def _models_of(self, envs: Sequence[str]) -> dict[str, str]:
        """Return a server's own part of the user's variable. Raises `FleetError` for an environment not served."""
        models = _inherited(MODELS_VARIABLE, '{"shop": {"user": {"url": "URL", "model": "NAME"}}}')
        if unserved := sorted(env for env in models if not self._serves(self.envs, env)):
            raise FleetError(
                f"{MODELS_VARIABLE} names {', '.join(unserved)}, but served are {', '.join(self.envs)}; a file or a "
                "class that asks a model is served alone"
            )
        if MODELS_VARIABLE not in os.environ:
            return {}
        return {MODELS_VARIABLE: json.dumps({env: told for env, told in models.items() if self._serves(envs, env)})}

    def _options_of(self, envs: Sequence[str]) -> dict[str, str]:
        """Return a server's own options: it refuses those of others, so the user's own variable is not passed on."""
        options = {name: given for env in envs for name, given in self.options.get(env, {}).items()}
        return {OPTIONS_VARIABLE: json.dumps(options)} if options or OPTIONS_VARIABLE in os.environ else {}

    def _serves(self, envs: Sequence[str], name: str) -> bool:
        """Return whether a server of `envs` hosts the environment; the reference of a file or class lacks its name."""
        return name in envs or len(self.envs) == 1

    def gateways(self) -> list[Service]:
        """Return gateways that route to all env servers. Only further rollout services use others than the first."""
        return [self._gateway(name) for name in replica_names(GATEWAY, self.scale.gateways)]

    def _gateway(self, name: str) -> Service:
        replicas = [server.url for server in self.env_servers()]
        env = {
            "GYMFLEET_GATEWAY_PORT": str(self.ports[name]),
            "GYMFLEET_GATEWAY_REPLICAS": json.dumps(replicas),
            "GYMFLEET_GATEWAY_REPLICA_API_KEY": self.key(ENV_SERVER),
            "GYMFLEET_GATEWAY_SECRET": self.gateway_secret,
            "GYMFLEET_GATEWAY_REDIS_URL": self.redis().url,
        }
        return Service(name=name, argv=(console_script("gymfleet-env-gateway"),), port=self.ports[name], env=env)

    def rewards(self) -> list[Service]:
        """Return the services that score trajectories."""
        return [self._reward(name) for name in replica_names(REWARD, self.scale.rewards)]

    def _reward(self, name: str) -> Service:
        env = {
            "GYMFLEET_REWARD_PORT": str(self.ports[name]),
            "GYMFLEET_REWARD_API_KEY": self.key(REWARD),
            "GYMFLEET_REWARD_SEAL_KEY": self._seal_keys()[0],
            "GYMFLEET_REWARD_REDIS_URL": self.redis().url,
            **({"GYMFLEET_REWARD_PLUGINS": json.dumps(self.components)} if self.components else {}),
            **(
                {REWARD_MODELS_VARIABLE: json.dumps({**self.reward_models, **inherited_models()})}
                if self.reward_models
                else {}
            ),
        }
        return Service(name=name, argv=(console_script("gymfleet-reward"),), port=self.ports[name], env=env)

    def rollouts(self, model: str | None, *recipe: str) -> list[Service]:
        """Return services that play with a model; arguments give the recipe and, without `model`, its model."""
        gateways = itertools.cycle(self.gateways())
        names = replica_names(ROLLOUT, self.scale.rollouts)
        return [
            self._rollout(name, gateway.url, model, recipe, self.placement.for_engine(number))
            for number, (name, gateway) in enumerate(zip(names, gateways, strict=False))
        ]

    def _rollout(
        self, name: str, gateway_url: str, model: str | None, recipe: tuple[str, ...], gpus: Mapping[str, str]
    ) -> Service:
        env = {
            "GYMFLEET_ROLLOUT_PORT": str(self.ports[name]),
            "GYMFLEET_ROLLOUT_API_KEY": self.key(ROLLOUT),
            "GYMFLEET_ROLLOUT_REDIS_URL": self.redis().url,
            "GYMFLEET_ROLLOUT_GATEWAY_URL": gateway_url,
            "GYMFLEET_ROLLOUT_REWARD_URL": self.ports.url(REWARD),
            "GYMFLEET_ROLLOUT_REWARD_API_KEY": self.key(REWARD),
            **({} if model is None else {"GYMFLEET_ROLLOUT_MODEL": model}),
            **gpus,
            **_shared_cores(),
        }
        return Service(
            name=name,
            argv=(console_script("gymfleet-rollout"), *recipe),
            port=self.ports[name],
            env=env,
            start_timeout_s=ENGINE_START_TIMEOUT_S,
        )

    def trainer(self, command: str, *arguments: str) -> Service:
        """Return a command of the trainer, which ends by itself: `build`, `run` or `eval`."""
        env = {
            "GYMFLEET_TRAINER_PORT": str(self.ports[TRAINER]),
            "GYMFLEET_TRAINER_API_KEY": self.key(TRAINER),
            "GYMFLEET_TRAINER_ROLLOUT_API_KEY": self.key(ROLLOUT),
            "GYMFLEET_TRAINER_REDIS_URL": self.redis().url,
            "GYMFLEET_TRAINER_GATEWAY_URL": self.ports.url(GATEWAY),
            "GYMFLEET_TRAINER_ROLLOUT_URL": ",".join(map(self.ports.url, replica_names(ROLLOUT, self.scale.rollouts))),
            **self.placement.for_trainer(),
            **_shared_cores(),
        }
        return Service(
            name=f"{TRAINER}-{command}",
            argv=(console_script("gymfleet-trainer"), command, *arguments),
            port=self.ports[TRAINER],
            env=env,
            probe="none",
        )


def inherited_models() -> dict[str, JsonValue]:
    """Return the user's own reward models, by name. Raises `FleetError` unless they are a JSON table."""
    return _inherited(REWARD_MODELS_VARIABLE, '{"helpful": {"kind": "embedded", "path": "DIRECTORY"}}')


def _inherited(variable: str, form: str) -> dict[str, JsonValue]:
    """Return the user's own variable, by name. Raises `FleetError` unless it has the form of `form`."""
    try:
        found: dict[str, JsonValue] = {**json.loads(os.environ.get(variable) or "{}")}
    except (ValueError, TypeError):
        raise FleetError(f"{variable} is no JSON of the form {form}") from None
    return found


def _shared_cores() -> dict[str, str]:
    """Return settings that make OpenMP threads sleep soon, instead of spinning, while they wait for each other.

    Engine and trainer share the machine's cores with each other and with everything else
    that runs there. A spinning thread keeps the thread that it waits for from running, and
    an update becomes ten times slower.
    """
    return {"GOMP_SPINCOUNT": os.environ.get("GOMP_SPINCOUNT", "1000")}
