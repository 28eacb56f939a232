"""Settings of the rollout service: `GYMFLEET_ROLLOUT_*`."""

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from gymfleet_contracts.recipe_sections import EngineSizes
from gymfleet_kit.http_settings import HttpSettings
from gymfleet_kit.settings import LOCAL_REDIS, RedisUrl
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
    the recipe gives it, the engine's settings and the seed, where neither a variable nor a secret does; a model
    from scratch is waited for."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 8202
    """Port to listen on."""
    control_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Where the policy is replaced (staged, committed, refused), and then there alone."""
    log_level: Annotated[str, Field(pattern=r"(?i)^(debug|info|warning|error)$")] = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    redis_url: RedisUrl = LOCAL_REDIS
    """The streams."""
    gateway_url: AnyHttpUrl = AnyHttpUrl("http://127.0.0.1:8200")
    """The env gateway."""
    gateway_api_key: SecretStr | None = None
    """Sent to the gateway, where that asks for one."""
    reward_url: AnyHttpUrl | None = None
    """The reward service, for strategies that have nodes valued by it."""
    reward_api_key: SecretStr | None = None
    """Sent to the reward service, where that asks for one."""
    gateway_connections: PositiveInt = 1
    """Sockets to the gateway."""

    backend: Annotated[str, Field(min_length=1, max_length=1024)] = "embedded"
    """Where the tokens come from: embedded, server, or an inference backend of your own: a name that an installed
    package declares, `package.module:Class`, or the path of a .py file."""
    backend_options: dict[str, JsonValue] = Field(default_factory=dict)
    """The backend's own options, as JSON."""
    server_urls: tuple[AnyHttpUrl, ...] = ()
    """vLLM servers, as a JSON list; only with `server`, whose option `urls` it is."""
    server_discover: tuple[AnyHttpUrl, ...] = ()
    """Base URLs whose host is a DNS name with one address per vLLM server, as a JSON list; a new server is given the
    live weights and compared with another before it serves. The option `discover` of `server`."""
    server_start_timeout_s: PositiveFloat | None = None
    """For the servers to answer. The option `start_timeout_s` of `server`: 600 unless it is given."""
    dtype: Literal["float32", "bfloat16", "float16"] = _ENGINE.dtype
    """float32, bfloat16 or float16."""
    max_model_len: PositiveInt = _ENGINE.max_model_len
    """Context, in tokens; unless it is given, the model's own where that is shorter."""
    max_num_seqs: PositiveInt = _ENGINE.max_num_seqs
    """Sequences in one step of the engine."""
    max_num_batched_tokens: PositiveInt = _ENGINE.max_num_batched_tokens
    """Tokens in one step of the engine."""
    kv_cache_gib: PositiveFloat = _ENGINE.kv_cache_gib
    """Memory for keys and values."""
    enforce_eager: bool = _ENGINE.enforce_eager
    """Run without compiled graphs."""
    max_lora_rank: Annotated[int, Field(ge=0, le=512)] = 0
    """The highest rank of the adapters that the policy's versions are; 0 where they are whole weights."""
    max_loras: Annotated[int, Field(ge=2, le=64)] = 2
    """Adapters that an engine has room for."""
    sleep_mode: bool = False
    """The engines can be put to sleep by the trainer, which shares their GPU; a recipe's `placement.colocated`."""
    received_dir: Path = SHARED_MEMORY
    """Where versions lie that the trainer sends (`publish.transfer = "broadcast"`), for the engines to load: room for
    two."""
    block_size: Annotated[int, Field(ge=32, multiple_of=32)] = 32
    """Tokens per block of the cache."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of the engine."""
    threads: PositiveInt = 1
    """Threads of the embedded engine's tensor operations."""

    plugins: tuple[str, ...] = ()
    """Plug-ins that requests may name beyond those that are installed: `package.module:Class` or paths of .py files, as
    JSON."""
    max_episodes: PositiveInt = 512
    """Episodes in flight."""
    max_groups: PositiveInt = 256
    """Groups taken from the stream at once."""
    max_raw_backlog: PositiveInt = 10_000
    """Trajectories that the reward service may be behind before episodes wait."""
    consumer: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=_consumer_name)
    """This process's name in the consumer group; no two living processes share one."""
    lease_s: PositiveFloat = 10.0
    """What this process neither finished nor held on to for so long goes to another one."""
    max_deliveries: PositiveInt = 5
    """Times a group is tried before it goes to the dead letters."""
    max_kept_trajectories: PositiveInt = 10_000
    """Of jobs over HTTP, until they are fetched."""
    max_body_bytes: PositiveInt = 64 * 1024 * 1024
    """Larger requests are refused."""

    @model_validator(mode="after")
    def ports_differ(self) -> Self:
        """Two ports, or one."""
        if self.control_port == self.port:
            raise ValueError(
                f"GYMFLEET_ROLLOUT_CONTROL_PORT is GYMFLEET_ROLLOUT_PORT, {self.port}: choose another, or leave it out"
            )
        return self

    @property
    def options_of_backend(self) -> dict[str, Any]:
        """The backend's options, unchecked. Those with a variable of their own are taken from there first."""
        named = {
            "urls": self.server_urls,
            "discover": self.server_discover,
            "start_timeout_s": self.server_start_timeout_s,
        }
        return {**self.backend_options, **{name: value for name, value in named.items() if value}}
