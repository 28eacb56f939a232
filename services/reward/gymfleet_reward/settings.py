"""Settings of the reward service: `GYMFLEET_REWARD_*`."""

import os
import secrets
import socket
from typing import Annotated

from gymfleet_kit.http_settings import HttpSettings
from gymfleet_kit.sealing import Opener
from gymfleet_kit.settings import LOCAL_REDIS, LogLevel, RedisUrl
from pydantic import Field, PositiveFloat, PositiveInt, SecretStr, field_validator
from pydantic_settings import SettingsConfigDict

from gymfleet_reward.judging.settings import JudgeName, JudgeSettings
from gymfleet_reward.models.tables import ModelName, ModelTable


def _consumer_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


class RewardSettings(HttpSettings):
    """Where Redis is, and how much is scored at once."""

    model_config = SettingsConfigDict(env_prefix="GYMFLEET_REWARD_", frozen=True)

    redis_url: RedisUrl = LOCAL_REDIS
    """The Redis of the streams."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 8203
    """Port to listen on."""
    log_level: LogLevel = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    consumer: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=_consumer_name)
    """This process's name in the consumer group; no two living processes share one."""
    plugins: tuple[str, ...] = ()
    """Components that requests may use in addition to those that come with gymfleet or that installed packages declare,
    as a JSON list of `package.module:Class` and paths of .py files, each as written in recipes."""
    component_timeout_s: PositiveFloat = 60.0
    """Time limit for one call of a component that does not come with gymfleet, or that asks a judge."""
    models: dict[ModelName, ModelTable] = Field(default_factory=dict)
    """Reward models that recipes may name, as a JSON table by name: `kind`, `embedded` or `vllm`, and the keys listed
    under [reward models](reward-models.md#settings)."""
    seal_key: SecretStr | None = None
    """The private key with which this service opens the environments' private data; `python -m gymfleet_kit.sealing`
    prints one with the public key for `GYMFLEET_ENV_SEAL_KEY`. Reward services that share a Redis have the same key."""
    judges: dict[JudgeName, JudgeSettings] = Field(default_factory=dict)
    """The language models that components may ask, by name, as JSON ([judges](judges.md)): `url` of a chat completions
    endpoint, `model`, and if needed `key_file`, `timeout_s` (60), `temperature`, `concurrency` (8), `json_schema`,
    `requests_per_minute`, `max_calls` and `max_tokens`."""
    group_wait_s: PositiveFloat = 200.0
    """If the episodes of a group are scored together: a group that received nothing for this long is given up, and the
    trainer requests its episodes again. Less than twice the trainer's `STALL_TIMEOUT_S`."""
    concurrency: PositiveInt = 32
    """Trajectories that are scored at once."""
    lease_s: PositiveFloat = 10.0
    """Work that this process has neither finished nor renewed its hold on for this long goes to another process."""
    max_attempts: PositiveInt = 5
    """Number of times that a trajectory is tried before it goes to the dead letters."""
    max_scored_backlog: PositiveInt = 10_000
    """Number of scored trajectories that a trainer may be behind before scoring waits."""
    max_body_bytes: PositiveInt = 64 * 1024 * 1024
    """Larger requests are refused."""

    @field_validator("seal_key")
    @classmethod
    def opens(cls, key: SecretStr | None) -> SecretStr | None:
        """Require a private key."""
        if key is not None:
            Opener(key.get_secret_value())
        return key
