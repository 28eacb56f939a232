"""Settings shared by all services that listen: their address, and who may call."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, SecretStr, model_validator

from gymfleet_kit.access import AccessRules, is_loopback
from gymfleet_kit.settings import ServiceSettings

HostName = Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?$")]
"""A name without a port, in lower case; `*.example.com` stands for all names below `example.com`."""
PageOrigin = Annotated[str, Field(pattern=r"^https?://[a-z0-9_.:\[\]-]{1,260}$")]
"""An origin as browsers send it: scheme, host and, unless it is the scheme's default, port."""
ApiKey = Annotated[SecretStr, Field(min_length=8)]


class HttpSettings(ServiceSettings):
    """The address on which a service listens, and who may call."""

    key_holders: ClassVar[str] = "those who call"
    """Who needs the key, for the message that it is missing."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Host names under which callers reach it, as a JSON list, `*.example.com` for all below one; `localhost` and IP
    addresses need not be listed ([who may call](operations.md#who-may-call))."""
    allowed_origins: tuple[PageOrigin, ...] = ()
    """Web pages that may call, as a JSON list of origins such as `https://play.example.com`."""
    api_key: ApiKey | None = None
    """Required of every caller, on every port, as `Authorization: Bearer <key>`, except for `/healthz`, `/readyz`,
    `/metrics` and `/openapi.json`; needed unless `HOST` is a loopback address."""

    def rules(self, *open_prefixes: str) -> AccessRules:
        """Return the rules for an app that checks the key itself."""
        return AccessRules(self.api_key, self.allowed_hosts, self.allowed_origins, open_prefixes)

    @model_validator(mode="after")
    def others_need_a_key(self) -> Self:
        """Require a key unless only this machine can reach the service: without one, every caller may use it."""
        if self.api_key is None and not is_loopback(self.host):
            prefix = self.model_config.get("env_prefix", "")
            raise ValueError(
                f"{prefix}HOST {self.host} can be reached from other machines, so callers need a key: set "
                f"{prefix}API_KEY, and give it to {self.key_holders}"
            )
        return self
