"""Settings of the environment server: `GYMFLEET_ENV_*`."""

from pathlib import Path
from typing import Annotated, ClassVar, Self

from gymfleet_contracts.session import Split
from gymfleet_kit.chat_endpoint import ModelEndpoint
from gymfleet_kit.http_settings import HttpSettings
from gymfleet_kit.settings import LogLevel
from pydantic import Field, JsonValue, PositiveFloat, PositiveInt, field_validator, model_validator
from pydantic_settings import SettingsConfigDict


class EnvServerSettings(HttpSettings):
    """How sessions are hosted."""

    model_config = SettingsConfigDict(env_prefix="GYMFLEET_ENV_", env_nested_delimiter="__", frozen=True)
    key_holders: ClassVar[str] = "the gateway, as GYMFLEET_GATEWAY_REPLICA_API_KEY"

    port: Annotated[int, Field(ge=1, le=65_535)] = 8110
    """Port to listen on."""
    shards: Annotated[int, Field(ge=1, le=256)] = 1
    """Worker processes; a session lives in one of them."""
    max_sessions: PositiveInt = 4096
    """Sessions over all shards; further ones get `environment-full`. A session of an environment with `slots` counts as
    that many."""
    threads: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Number of calls of sessions, and of opens, that may run at once per shard and environment that waits (a shell, a
    database, a JVM). By default as many as there may be sessions; an environment may set fewer. Idle threads end after
    half a minute."""
    step_timeout_s: PositiveFloat = 30.0
    """An environment's call that takes longer ends its session. If the call waits in a thread, nothing else ends;
    otherwise its shard is killed and restarted. A task may set a limit of its own."""
    open_wait_s: Annotated[float, Field(ge=0)] = 30.0
    """How long an open waits while every shard is being started; then it is answered with 503."""
    start_timeout_s: PositiveFloat = 120.0
    """Time for a shard to load its environments."""
    seal_key: str | None = None
    """The reward service's public key. With it, an environment's data for the reward service alone is sent sealed;
    without it, it is not sent ([sealed data](adding-an-environment.md#what-only-the-reward-may-know))."""
    lease_s: PositiveFloat = 600.0
    """A session that is not touched for this long is closed."""
    session_cpu_s: PositiveFloat | None = None
    """Processor seconds that one session's calls may use; then it is closed with `session-limit`."""
    session_wall_s: PositiveFloat | None = None
    """A session older than this is closed with `session-limit`, however busy it is."""
    shard_memory_mb: Annotated[int, Field(ge=64)] | None = None
    """A shard that holds more MiB (its child processes included) is killed and restarted; a single process may allocate
    at most twice as much plus 1 GiB."""
    drain_s: Annotated[float, Field(ge=0)] = 0.0
    """How long the server waits after SIGTERM for sessions to be closed, opening none. With 0 it ends at once, as it
    does after SIGINT or a second SIGTERM."""
    max_outbox_mb: PositiveInt = 256
    """MiB of answers that one stream's caller may leave unread; beyond 4 its requests wait, beyond this its socket is
    closed."""
    max_observation_chars: Annotated[int, Field(ge=256, le=1_000_000)] = 65_536
    """Longer observations are cut, with a mark."""
    data: dict[str, Path] = Field(default_factory=dict)
    """Benchmark files by environment, as JSON: `{"maze": "/data/maze"}`."""
    options: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """Options of environments, as JSON: `{"db": {"backend": "mariadb"}}`; their READMEs name them."""
    models: dict[str, dict[str, ModelEndpoint]] = Field(default_factory=dict)
    """The models that answer when environments ask, by environment and role, as JSON ([an
    example](adding-an-environment.md#an-environment-that-asks-a-model)): `url` of a chat completions endpoint, `model`,
    and if needed `key_file`, `timeout_s` (20), `temperature` and `concurrency` (64, of each shard)."""
    expert_splits: tuple[Split, ...] = ("train",)
    """Splits whose expert moves are served."""
    expert_timeout_s: PositiveFloat = 5.0
    """An expert that takes longer for a move than this, or than half of `step_timeout_s`, is cut off: there is no
    expert move, and the session continues without an expert. Environments that wait delay no other session and are not
    cut off."""
    log_level: LogLevel = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    @field_validator("seal_key")
    @classmethod
    def seals(cls, key: str | None) -> str | None:
        """Require a public key, and the package to seal with."""
        if key is not None:
            from gymfleet_kit.sealing import Sealer  # noqa: PLC0415 - needs a package that most env servers do without

            Sealer(key)
        return key

    @model_validator(mode="after")
    def lease_outlives_step(self) -> Self:
        """Require a lease that is longer than a step: otherwise a slow step loses its session."""
        if self.lease_s <= self.step_timeout_s:
            raise ValueError("lease_s must exceed step_timeout_s, or a slow step loses its session")
        return self
