"""Settings of the rollout service: `GYMFLEET_ROLLOUT_*`."""

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from gymfleet_contracts.recipe_sections import EngineSizes
from gymfleet_kit.http_settings import HttpSettings
from gymfleet_kit.settings import LOCAL_REDIS, LogLevel, RedisUrl
from gymfleet_kit.shared_weights import SHARED_MEMORY
from pydantic import AnyHttpUrl, Field, JsonValue, PositiveFloat, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

_ENGINE: Final = EngineSizes()


def _consumer_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


class RolloutSettings(HttpSettings):
    """Which policy is served, how, and how much is played at once."""

    model_config = SettingsConfigDict(env_prefix="GYMFLEET_ROLLOUT_", frozen=True)
    key_holders: ClassVar[str] = "the trainer, as GYMFLEET_TRAINER_ROLLOUT_API_KEY"

    model: str
    """A directory or a Hugging Face id: the policy of version 0. With `gymfleet-rollout --recipe FILE --run-dir DIR`
    the recipe provides it, the engine's settings and the seed, unless a variable or a secret does; the service waits
    for a model from scratch."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 8202
    """Port to listen on."""
    control_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """If given, the only port over which the policy can be replaced (staged, committed, refused)."""
    log_level: LogLevel = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    redis_url: RedisUrl = LOCAL_REDIS
    """The Redis of the streams."""
    gateway_url: AnyHttpUrl = AnyHttpUrl("http://127.0.0.1:8200")
    """The env gateway."""
    gateway_api_key: SecretStr | None = None
    """The key sent to the gateway, if the gateway asks for one."""
    reward_url: AnyHttpUrl | None = None
    """The reward service, for strategies whose nodes it values."""
    reward_api_key: SecretStr | None = None
    """The key sent to the reward service, if the service asks for one."""
    gateway_connections: PositiveInt = 1
    """Sockets to the gateway."""

    backend: Annotated[str, Field(min_length=1, max_length=1024)] = "embedded"
    """The source of tokens: embedded, server, or your own inference backend, given as a name that an installed package
    declares, `package.module:Class`, or the path of a .py file."""
    backend_options: dict[str, JsonValue] = Field(default_factory=dict)
    """The backend's own options, as JSON."""
    server_urls: tuple[AnyHttpUrl, ...] = ()
    """URLs of vLLM servers, as a JSON list; only with `server`, as its option `urls`."""
    server_discover: tuple[AnyHttpUrl, ...] = ()
    """Base URLs whose host is a DNS name with one address per vLLM server, as a JSON list; a new server gets the live
    weights and is compared with another before it serves. The option `discover` of `server`."""
    server_start_timeout_s: PositiveFloat | None = None
    """Time limit for the servers to answer at the start. The option `start_timeout_s` of `server`: 600 by default."""
    dtype: Literal["float32", "bfloat16", "float16"] = _ENGINE.dtype
    """float32, bfloat16 or float16."""
    max_model_len: PositiveInt = _ENGINE.max_model_len
    """Context, in tokens; unless it is given, the model's own if that is shorter."""
    max_num_seqs: PositiveInt = _ENGINE.max_num_seqs
    """Sequences in one step of the engine."""
    max_num_batched_tokens: PositiveInt = _ENGINE.max_num_batched_tokens
    """Tokens in one step of the engine."""
    kv_cache_gib: PositiveFloat = _ENGINE.kv_cache_gib
    """Memory for keys and values."""
    enforce_eager: bool = _ENGINE.enforce_eager
    """Run without compiled graphs."""
    max_lora_rank: Annotated[int, Field(ge=0, le=512)] = 0
    """The highest rank of the adapters that are the policy's versions; 0 if versions are whole weights."""
    max_loras: Annotated[int, Field(ge=2, le=64)] = 2
    """Adapters that an engine has room for."""
    sleep_mode: bool = False
    """The trainer, which shares the engines' GPU, can put them to sleep; a recipe's `placement.colocated`."""
    received_dir: Path = SHARED_MEMORY
    """The directory of versions that the trainer sends (`publish.transfer = "broadcast"`), from which the engines load
    them; it needs room for two."""
    block_size: Annotated[int, Field(ge=32, multiple_of=32)] = 32
    """Tokens per block of the cache."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the engine."""
    threads: PositiveInt = 1
    """Threads of the embedded engine's tensor operations."""

    plugins: tuple[str, ...] = ()
    """Plug-ins that requests may name in addition to the installed ones: `package.module:Class` or paths of .py files,
    as JSON."""
    max_episodes: PositiveInt = 512
    """Episodes in flight."""
    max_groups: PositiveInt = 256
    """Groups taken from the stream at once."""
    max_raw_backlog: PositiveInt = 10_000
    """Number of trajectories that the reward service may be behind before episodes wait."""
    consumer: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=_consumer_name)
    """This process's name in the consumer group; no two living processes share one."""
    lease_s: PositiveFloat = 10.0
    """Work that this process has neither finished nor renewed its hold on for this long goes to another process."""
    max_deliveries: PositiveInt = 5
    """Number of times that a group is tried before it goes to the dead letters."""
    max_kept_trajectories: PositiveInt = 10_000
    """Trajectories of jobs over HTTP that are kept until they are fetched."""
    max_body_bytes: PositiveInt = 64 * 1024 * 1024
    """Larger requests are refused."""

    @model_validator(mode="after")
    def ports_differ(self) -> Self:
        """Require that two ports differ."""
        if self.control_port == self.port:
            raise ValueError(
                f"GYMFLEET_ROLLOUT_CONTROL_PORT is GYMFLEET_ROLLOUT_PORT, {self.port}: choose another, or leave it out"
            )
        return self

    @property
    def options_of_backend(self) -> dict[str, Any]:
        """Return the backend's options, unchecked. Options with their own variable are taken from there first."""
        named = {
            "urls": self.server_urls,
            "discover": self.server_discover,
            "start_timeout_s": self.server_start_timeout_s,
        }
        return {**self.backend_options, **{name: value for name, value in named.items() if value}}
