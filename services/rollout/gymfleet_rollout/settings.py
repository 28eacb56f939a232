"""Settings of the rollout service: `GYMFLEET_ROLLOUT_*`."""

import os
import secrets
import socket
from typing import Annotated, ClassVar, Literal, Self

from gymfleet_kit.http_settings import HttpSettings
from gymfleet_kit.settings import LOCAL_REDIS, RedisUrl
from pydantic import AnyHttpUrl, Field, PositiveFloat, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict


def _consumer_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


class RolloutSettings(HttpSettings):
    """Which policy is served, how, and how much is played at once."""

    model_config = SettingsConfigDict(env_prefix="GYMFLEET_ROLLOUT_", frozen=True)
    key_holders: ClassVar[str] = "the trainer, as GYMFLEET_TRAINER_ROLLOUT_API_KEY"

    model: str
    """A local directory or a Hugging Face id: the policy of version 0, its tokenizer and chat template."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 8202
    control_port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """Where policy versions are staged, committed and refused, and then there alone; without it, on `port`."""
    log_level: Annotated[str, Field(pattern=r"(?i)^(debug|info|warning|error)$")] = "INFO"
    redis_url: RedisUrl = LOCAL_REDIS
    gateway_url: AnyHttpUrl = AnyHttpUrl("http://127.0.0.1:8200")
    gateway_api_key: SecretStr | None = None
    gateway_connections: PositiveInt = 1

    backend: Literal["embedded", "server"] = "embedded"
    server_urls: tuple[AnyHttpUrl, ...] = ()
    """Base URLs of vLLM servers, as a JSON list; each replica directly, never a balancer."""
    server_discover: tuple[AnyHttpUrl, ...] = ()
    """Base URLs whose host is a DNS name with one address per vLLM server; resolved again and again."""
    server_start_timeout_s: PositiveFloat = 600.0
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    max_model_len: PositiveInt = 1024
    max_num_seqs: PositiveInt = 256
    """Embedded: sequences in one step. Server: requests sent at once to each replica."""
    max_num_batched_tokens: PositiveInt = 2048
    kv_cache_gib: PositiveFloat = 1.0
    enforce_eager: bool = True
    block_size: Annotated[int, Field(ge=32, multiple_of=32)] = 32
    """Tokens in a block of the prefix cache; what an episode shares with its neighbours is counted in whole blocks."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    threads: PositiveInt = 1
    """Threads of the embedded engine's tensor operations."""

    max_episodes: PositiveInt = 512
    """Episodes in flight."""
    max_groups: PositiveInt = 256
    """Groups taken from the stream at once."""
    max_raw_backlog: PositiveInt = 10_000
    """Trajectories that the reward service may be behind before episodes wait."""
    consumer: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=_consumer_name)
    """This process's name in the consumer group; no two living processes share one."""
    lease_s: PositiveFloat = 10.0
    """A group that this process neither finished nor renewed for so long goes to another one."""
    max_deliveries: PositiveInt = 5
    max_kept_trajectories: PositiveInt = 10_000
    """Trajectories of jobs over HTTP that are kept for collection."""
    max_body_bytes: PositiveInt = 64 * 1024 * 1024

    @model_validator(mode="after")
    def ports_differ(self) -> Self:
        """Two ports, or one."""
        if self.control_port == self.port:
            raise ValueError(
                f"GYMFLEET_ROLLOUT_CONTROL_PORT is GYMFLEET_ROLLOUT_PORT, {self.port}: choose another, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def servers_have_urls(self) -> Self:
        """`server_urls` and `server_discover` belong to `backend = server`, and only there."""
        if (self.backend == "server") != bool(self.server_urls or self.server_discover):
            raise ValueError(
                "GYMFLEET_ROLLOUT_SERVER_URLS, or SERVER_DISCOVER, must be given with BACKEND=server, and only then"
            )
        return self
