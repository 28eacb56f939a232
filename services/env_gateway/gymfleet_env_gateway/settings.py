"""The gateway's settings, read once in `main`."""

from typing import Annotated, Self

from gymfleet_kit.settings import ServiceSettings
from pydantic import Field, HttpUrl, PositiveFloat, PositiveInt, RedisDsn, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

ENV_PREFIX = "GYMFLEET_GATEWAY_"


class GatewaySettings(ServiceSettings):
    """Environment variables `GYMFLEET_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65_535)] = 8200
    replicas: Annotated[tuple[HttpUrl, ...], Field(min_length=1)]
    """Base URLs of the env servers, as a JSON list. Each is asked which environments it serves."""
    secret: Annotated[SecretStr, Field(min_length=16)]
    """Signs session ids. Gateways with the same secret and the same replicas serve each other's sessions."""
    api_key: SecretStr | None = None
    """When set, `/v1` is served to `Authorization: Bearer <key>` alone."""
    agentgym: bool | None = None
    """The AgentGym front, whose clients can send no key: by default on when there is no `api_key`."""
    redis_url: RedisDsn | None = None
    """The fleet's Redis; routing needs none, because session ids say where they live."""

    open_timeout_s: PositiveFloat = 60.0
    step_timeout_s: PositiveFloat = 60.0
    """For one answer of an env server; its own limit for a step should be shorter."""
    call_timeout_s: PositiveFloat = 30.0
    """For calls that play nothing: get, lease, close."""

    probe_interval_s: PositiveFloat = 0.5
    probe_timeout_s: PositiveFloat = 1.0
    """A replica that does not answer a probe in time gets new sessions only when no other can take them."""
    unresponsive_after_s: PositiveFloat = 15.0
    """A replica that accepts connections but has answered nothing for so long counts as dead."""
    startup_grace_s: PositiveFloat = 15.0
    """How long readiness waits for replicas that never answered."""

    connections_per_replica: PositiveInt = 2
    max_calls_per_socket: PositiveInt = 4096
    """Calls in flight on one client's `/v1/stream`; then the gateway stops reading."""
    agentgym_max_sessions: PositiveInt = 4096
    agentgym_idle_s: PositiveFloat = 600.0
    """An AgentGym session that is not touched for so long is closed: most of these clients never do it."""
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"

    @property
    def serves_agentgym(self) -> bool:
        """Whether `/agentgym` is mounted."""
        return self.api_key is None if self.agentgym is None else self.agentgym

    @model_validator(mode="after")
    def death_takes_longer_than_a_probe(self) -> Self:
        """One missed probe must not kill a replica's sessions."""
        if self.unresponsive_after_s <= self.probe_interval_s + self.probe_timeout_s:
            raise ValueError("unresponsive_after_s must exceed probe_interval_s + probe_timeout_s")
        return self

    @model_validator(mode="after")
    def replicas_are_distinct(self) -> Self:
        """A URL that is given twice would count twice in routing."""
        if len(set(self.replicas)) != len(self.replicas):
            raise ValueError("replicas lists a URL twice")
        return self
