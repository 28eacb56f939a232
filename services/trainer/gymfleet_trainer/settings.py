"""Settings of the trainer: where its neighbours are, and how long it waits for them."""

from typing import Annotated, Final
from urllib.parse import urlsplit

from gymfleet_kit.http_settings import HttpSettings
from gymfleet_kit.settings import LOCAL_REDIS, LogLevel, RedisUrl
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

ENV_PREFIX: Final = "GYMFLEET_TRAINER_"


def _url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it is not the URL of a service, such as http://env-gateway:8200")
    return value


def _base_urls(value: str) -> str:
    for url in value.split(","):
        parts = urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"{url.strip()!r} is not the base URL of a service, such as http://rollout:8212")
    return value


class TrainerSettings(HttpSettings):
    """Environment variables `GYMFLEET_TRAINER_*`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True)

    redis_url: RedisUrl = LOCAL_REDIS
    """URL of the Redis that holds the streams."""
    gateway_url: Annotated[str, AfterValidator(_url)] = "http://127.0.0.1:8200"
    """URL of the env gateway."""
    rollout_url: Annotated[str, AfterValidator(_base_urls)] = "http://127.0.0.1:8202"
    """Base URLs of the rollout services (with the control port, where there is one), separated by commas. Each address
    that a host name resolves to is a replica."""
    rollout_api_key: SecretStr | None = None
    """API key sent to the rollout services, where they require one."""
    gateway_api_key: SecretStr | None = None
    """API key sent to the gateway, where it requires one."""
    port: int = Field(default=8204, ge=0, le=65_535)
    """Port to listen on."""
    log_level: LogLevel = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    log_json: bool = True
    """Whether to log JSON lines instead of text."""

    torch_threads: PositiveInt = 2
    """Threads of torch."""
    lease_s: PositiveFloat = 15.0
    """A delivery that this process neither finishes nor extends for this long goes to another process."""
    stall_timeout_s: PositiveFloat = 120.0
    """After this long without progress, what is missing is requested once more; after as long again, the run stops and
    reports who is missing."""
    services_timeout_s: PositiveFloat = 120.0
    """Time for the other services to become ready at the start."""
    publish_timeout_s: PositiveFloat = 120.0
    """Time for staging a version, and again for committing it."""
    policy_poll_s: PositiveFloat = 2.0
    """How often the live version is checked while waiting."""
    max_replacements: PositiveInt = 5
    """How often a failed sample is played again within its group, and how many groups in one slot may be dropped
    within a step before the run stops."""
    sft_checkpoint_every_s: PositiveFloat = 30.0
    """Minimum time between checkpoints in the warm start."""
    recorded_groups_per_step: PositiveInt = 2
    """Groups per step whose episodes are recorded in `trajectories/STAGE.jsonl`."""
