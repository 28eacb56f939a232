"""The gateway's settings, read once in `main`."""

from pathlib import Path
from typing import Annotated, Self

from gymfleet_contracts.frames import MAX_FRAME_BYTES
from gymfleet_kit.access import AccessRules, is_loopback
from gymfleet_kit.http_settings import ApiKey, HttpSettings
from gymfleet_kit.settings import LogLevel, RedisUrl
from pydantic import Field, HttpUrl, PositiveFloat, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from gymfleet_env_gateway.tenants import read_tenants

ENV_PREFIX = "GYMFLEET_GATEWAY_"


class GatewaySettings(HttpSettings):
    """Environment variables `GYMFLEET_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True)

    port: Annotated[int, Field(ge=1, le=65_535)] = 8200
    """Port to listen on."""
    replicas: tuple[HttpUrl, ...] = ()
    """Base URLs of the env servers, as a JSON list; this or `DISCOVER` is needed."""
    discover: tuple[HttpUrl, ...] = ()
    """Base URLs whose host is a DNS name with one address per env server, as a JSON list."""
    discover_interval_s: PositiveFloat = 2.0
    """How often these names are resolved again."""
    replica_api_key: ApiKey | None = None
    """Sent to the env servers, which ask for it as `GYMFLEET_ENV_API_KEY`."""
    secret: Annotated[SecretStr, Field(min_length=16)]
    """Signs session ids; at least 16 characters, the same for all gateways."""
    previous_secrets: tuple[Annotated[SecretStr, Field(min_length=16)], ...] = ()
    """Further secrets whose session ids are accepted, as a JSON list: [while the secret is
    rotated](operations.md#the-gateways-secret)."""
    api_key: ApiKey | None = None
    """The only key, of the tenant `default`; at least 8 characters."""
    tenants: Path | None = None
    """A TOML file of tenants with their keys and limits, instead of the one key."""
    max_opens_per_replica: PositiveInt = 64
    """Opens and forks that one gateway has under way on an env server; further ones wait in the queue. An env server
    that is given more than it can do in time finishes the rest when nobody waits for the answers any more."""
    max_queue: PositiveInt | None = None
    """Opens that may wait for a slot of one environment; more are answered with 429. By default twice the sessions
    that its replicas can hold, and at least 1024."""
    queue_timeout_s: PositiveFloat = 30.0
    """How long an open waits for a slot before it is answered with 429."""
    fronts_wait_s: Annotated[float, Field(ge=0)] = 120.0
    """How long the AgentGym, OpenEnv and MCP fronts retry after such a 429 for their clients, which would take it for a
    failure; with 0, not at all."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = MAX_FRAME_BYTES
    """Larger requests are refused with 413."""
    agentgym: bool = True
    """Serve AgentGym clients under `/agentgym`."""
    openenv: bool = True
    """Serve OpenEnv clients under `/openenv`."""
    mcp: bool = True
    """Serve MCP clients under `/mcp`."""
    redis_url: RedisUrl | None = None
    """The fleet's Redis, for the journal, the fronts' ids and the number of gateways; without it a session dies with
    its process."""
    journal_timeout_s: PositiveFloat = 2.0
    """Time for the journal to answer; after that the gateway continues without it."""
    recovery_timeout_s: PositiveFloat = 30.0
    """Time for finding a replica that takes over a session, and for replaying the session there."""
    max_recoveries: PositiveInt = 5
    """How often a session is recovered without a step in between; it is given up when its process dies once more."""

    open_timeout_s: PositiveFloat = 60.0
    """Time for a session to open."""
    step_timeout_s: PositiveFloat = 60.0
    """Time for one answer of an env server; longer than the server's own limit."""
    call_timeout_s: PositiveFloat = 30.0
    """Time for calls that play nothing."""

    probe_interval_s: PositiveFloat = 0.5
    """Time between probes of each replica."""
    probe_timeout_s: PositiveFloat = 1.0
    """A replica that does not answer in time gets no new sessions."""
    unresponsive_after_s: PositiveFloat = 15.0
    """A replica that has answered nothing for this long counts as dead."""
    startup_grace_s: PositiveFloat = 15.0
    """How long readiness waits for replicas that have never answered."""

    connections_per_replica: PositiveInt = 2
    """Sockets to each env server."""
    max_calls_per_socket: PositiveInt = 4096
    """Calls in flight on one client's socket; then the gateway stops reading."""
    agentgym_max_sessions: PositiveInt = 4096
    """Sessions of AgentGym clients."""
    agentgym_idle_s: PositiveFloat = 600.0
    """An AgentGym session that is not touched for this long is closed."""
    openenv_lease_s: PositiveFloat = 60.0
    """How long a session whose OpenEnv socket was lost waits to be resumed."""
    openenv_idle_s: PositiveFloat = 600.0
    """An OpenEnv session that is not played for this long is closed."""
    openenv_max_handles: PositiveInt = 4096
    """Sessions of OpenEnv's MCP clients at once."""
    log_level: LogLevel = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""

    def rules(self, *open_prefixes: str) -> AccessRules:
        """Return the app's access rules, without a key: keys belong to tenants, and the routes ask for them."""
        return AccessRules(None, self.allowed_hosts, self.allowed_origins, open_prefixes)

    @model_validator(mode="after")
    def others_need_a_key(self) -> Self:
        """Require a key unless only this machine can reach the gateway: without keys, whoever reaches it may play."""
        if self.api_key is not None and self.tenants is not None:
            raise ValueError("set api_key or tenants, not both: give the key's holder a tenant in the file")
        if self.api_key is None and self.tenants is None and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host} can be reached from other machines, so callers need a key: make one with "
                "`gymfleet keys new --tenant NAME` and name the file with it in tenants, or set api_key"
            )
        if self.tenants is not None:
            read_tenants(self.tenants)
        return self

    @model_validator(mode="after")
    def death_takes_longer_than_a_probe(self) -> Self:
        """Require that one missed probe does not kill a replica's sessions."""
        if self.unresponsive_after_s <= self.probe_interval_s + self.probe_timeout_s:
            raise ValueError("unresponsive_after_s must exceed probe_interval_s + probe_timeout_s")
        return self

    @model_validator(mode="after")
    def replicas_are_given_once(self) -> Self:
        """Require env servers, and no URL twice: it would count twice in routing."""
        if len(set(self.replicas)) != len(self.replicas):
            raise ValueError("replicas lists a URL twice")
        if not (self.replicas or self.discover):
            raise ValueError("give the env servers' URLs in replicas, or a DNS name that stands for them in discover")
        return self
