"""Settings of the trainer: where its neighbours are, and how long it waits for them."""

from typing import Final

from gymfleet_kit.settings import ServiceSettings
from pydantic import Field, PositiveFloat, PositiveInt, SecretStr
from pydantic_settings import SettingsConfigDict

ENV_PREFIX: Final = "GYMFLEET_TRAINER_"


class TrainerSettings(ServiceSettings):
    """Environment variables `GYMFLEET_TRAINER_*`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True)

    redis_url: str = "redis://127.0.0.1:6379/0"
    gateway_url: str = "http://127.0.0.1:8200"
    rollout_url: str = "http://127.0.0.1:8202"
    api_key: SecretStr | None = None
    """Sent to the gateway, where that asks for one."""
    host: str = "127.0.0.1"
    port: int = Field(default=8204, ge=0, le=65_535)
    log_level: str = "INFO"
    log_json: bool = True

    torch_threads: PositiveInt = 2
    lease_s: PositiveFloat = 15.0
    """A trajectory that this process holds is its own for so long after the last renewal."""
    stall_timeout_s: PositiveFloat = 120.0
    """Without a sign of progress for so long, the run stops and says who is missing."""
    services_timeout_s: PositiveFloat = 120.0
    """How long to wait for Redis, gateway and rollout to become ready at the start."""
    publish_timeout_s: PositiveFloat = 120.0
    """For staging a version, and again for committing it, retries included."""
    policy_poll_s: PositiveFloat = 2.0
    """How often the live version is checked while waiting: a restarted rollout service has lost it."""
    max_replacements: PositiveInt = 5
    """How often a group is asked for anew when its episodes fail, before the run stops."""
    sft_checkpoint_every_s: PositiveFloat = 30.0
    """Least time between checkpoints within the warm start."""
    recorded_groups_per_step: PositiveInt = 2
    """Groups per step whose trajectories go to trajectories/train.jsonl, to bound its size."""
