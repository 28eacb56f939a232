"""The gateway's settings, read once in `main`."""

from pathlib import Path
from typing import Annotated, Self

from gymfleet_contracts.frames import MAX_FRAME_BYTES
from gymfleet_kit.access import AccessRules, is_loopback
from gymfleet_kit.http_settings import ApiKey, HttpSettings
from gymfleet_kit.settings import RedisUrl
from pydantic import Field, HttpUrl, PositiveFloat, PositiveInt, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from gymfleet_env_gateway.tenants import read_tenants

ENV_PREFIX = "GYMFLEET_GATEWAY_"


class GatewaySettings(HttpSettings):
    """Environment variables `GYMFLEET_GATEWAY_*`."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True)

    port: Annotated[int, Field(ge=1, le=65_535)] = 8200
    replicas: tuple[HttpUrl, ...] = ()
    """Base URLs of the env servers, as a JSON list. Each is asked which environments it serves."""
    discover: tuple[HttpUrl, ...] = ()
    """Base URLs whose host is a DNS name with one address per env server, such as a headless service's."""
    discover_interval_s: PositiveFloat = 2.0
    """How often the names are resolved anew."""
    replica_api_key: ApiKey | None = None
    """Sent to the env servers, which ask for it as `GYMFLEET_ENV_API_KEY`."""
    secret: Annotated[SecretStr, Field(min_length=16)]
    """Signs session ids. Gateways with the same secret and the same replicas serve each other's sessions."""
    previous_secrets: tuple[Annotated[SecretStr, Field(min_length=16)], ...] = ()
    """Ids that were signed with these are good too, as a JSON list: while the secret is rotated."""
    api_key: ApiKey | None = None
    """The one key, of the tenant `default`: sent as `Authorization: Bearer <key>` or as the password of Basic."""
    tenants: Path | None = None
    """A TOML file of tenants with their keys and limits, instead of `api_key`; read again when it changes."""
    max_opens_per_replica: PositiveInt = 64
    """Opens and forks that one gateway has under way on an env server; more wait in the queue. What an env server is
    given beyond its speed it works off when nobody waits for the answer any more."""
    max_queue: PositiveInt | None = None
    """Opens that may wait for a slot of one environment; more are answered with 429. None: twice the sessions that its
    replicas can hold, and at least 1024."""
    queue_timeout_s: PositiveFloat = 30.0
    """How long one waits for a slot before it is answered with 429."""
    fronts_wait_s: Annotated[float, Field(ge=0)] = 120.0
    """How long a front comes again after such a 429 for its client, to whom it would be the end: 0, not at all."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = MAX_FRAME_BYTES
    """Larger requests are refused; a message on a stream may have as much as by default."""
    agentgym: bool = True
    """The AgentGym front, `/agentgym/{env}`; its clients carry a key in their URL: `http://any:KEY@host/...`."""
    openenv: bool = True
    """The OpenEnv front, `/openenv/{env}`; its clients authenticate as those of `/v1` do, or by their URL."""
    mcp: bool = True
    """The MCP front, `/mcp/{env}`; its clients authenticate as those of `/v1` do."""
    redis_url: RedisUrl | None = None
    """The fleet's Redis, for the journal: without it a session dies with its process."""
    journal_timeout_s: PositiveFloat = 2.0
    """A journal that does not answer in time is done without: sessions go on, but cannot be recovered."""
    recovery_timeout_s: PositiveFloat = 30.0
    """For finding a replica that takes a session over and for playing it again there."""
    max_recoveries: PositiveInt = 5
    """A session whose processes die so often without a step between is given up: it may be what kills them."""

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
    openenv_lease_s: PositiveFloat = 60.0
    """A session whose OpenEnv socket was lost waits so long for `/ws?session_id=`."""
    openenv_idle_s: PositiveFloat = 600.0
    """An OpenEnv session that is not played for so long is closed, also while its client's socket is open."""
    openenv_max_handles: PositiveInt = 4096
    """Sessions of OpenEnv's MCP clients at once, over all gateways."""
    log_level: Annotated[str, Field(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"

    def rules(self, *open_prefixes: str) -> AccessRules:
        """Keys are the tenants', and asked for by the routes."""
        return AccessRules(None, self.allowed_hosts, self.allowed_origins, open_prefixes)

    @model_validator(mode="after")
    def others_need_a_key(self) -> Self:
        """Without keys everybody who reaches the gateway may play: that is for this machine alone."""
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
        """One missed probe must not kill a replica's sessions."""
        if self.unresponsive_after_s <= self.probe_interval_s + self.probe_timeout_s:
            raise ValueError("unresponsive_after_s must exceed probe_interval_s + probe_timeout_s")
        return self

    @model_validator(mode="after")
    def replicas_are_given_once(self) -> Self:
        """A URL that is given twice would count twice in routing."""
        if len(set(self.replicas)) != len(self.replicas):
            raise ValueError("replicas lists a URL twice")
        if not (self.replicas or self.discover):
            raise ValueError("give the env servers' URLs in replicas, or a DNS name that stands for them in discover")
        return self
