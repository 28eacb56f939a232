"""Settings of the environment server: `GYMFLEET_ENV_*`."""

from pathlib import Path
from typing import Annotated, ClassVar, Self

from gymfleet_contracts.session import Split
from gymfleet_kit.http_settings import HttpSettings
from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, model_validator
from pydantic_settings import SettingsConfigDict


class EnvServerSettings(HttpSettings):
    """How sessions are hosted."""

    model_config = SettingsConfigDict(env_prefix="GYMFLEET_ENV_", env_nested_delimiter="__", frozen=True)
    key_holders: ClassVar[str] = "the gateway, as GYMFLEET_GATEWAY_REPLICA_API_KEY"

    port: Annotated[int, Field(ge=1, le=65_535)] = 8110
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    """Worker processes. A session lives in one of them and shares it with its neighbours."""
    max_sessions: PositiveInt = 4096
    """Over all shards and environments; more get `environment-full`."""
    threads: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Per shard and environment that waits: so many of its sessions' calls are in work at once, and so many opens.
    None: as many as there may be sessions. Threads come when they are needed and go when they were idle for a while."""
    step_timeout_s: PositiveFloat = 30.0
    """A call of an environment that takes longer ends its session; that alone where it waits in a thread, else with its
    shard, which is started anew."""
    open_wait_s: Annotated[float, Field(ge=0)] = 30.0
    """How long an open waits while every shard is being started; then it is answered with 503."""
    start_timeout_s: PositiveFloat = 120.0
    """A shard that has not loaded its environments by then is given up."""
    lease_s: PositiveFloat = 600.0
    """A session untouched for this long is closed and its slot freed; a caller may ask for another lease."""
    session_cpu_s: PositiveFloat | None = None
    """Processor time of the shard's thread in one session's calls; a session that used more is closed."""
    session_wall_s: PositiveFloat | None = None
    """A session older than this is closed, however busy it is."""
    shard_memory_mb: Annotated[int, Field(ge=64)] | None = None
    """A shard that holds more (MiB, with the processes that it started) is killed and started anew."""
    drain_s: Annotated[float, Field(ge=0)] = 0.0
    """How long SIGTERM waits for the sessions to be closed; meanwhile none is opened. 0: end at once."""
    max_outbox_mb: PositiveInt = 256
    """Answers (MiB) that one stream's caller may leave untaken before its socket is closed."""
    max_observation_chars: Annotated[int, Field(ge=256, le=1_000_000)] = 65_536
    """Longer observations are cut, with a mark at the cut."""
    data: dict[str, Path] = Field(default_factory=dict)
    """Benchmark files by environment, as JSON: `{"maze": "/data/maze"}`. Without, tasks are generated."""
    options: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Options of environments, as JSON: `{"db": {"backend": "mariadb"}}`; their READMEs name them."""
    expert_splits: tuple[Split, ...] = ("train",)
    """Splits whose expert moves are served."""
    expert_timeout_s: PositiveFloat = 5.0
    """An expert that thinks longer of a move, or half of `step_timeout_s`, is cut off: there is no expert move, and the
    session goes on without an expert. Environments that wait make no other session wait, and are not cut off."""
    log_level: str = "INFO"

    @model_validator(mode="after")
    def lease_outlives_step(self) -> Self:
        """Else a slow step loses its session."""
        if self.lease_s <= self.step_timeout_s:
            raise ValueError("lease_s must exceed step_timeout_s, or a slow step loses its session")
        return self
