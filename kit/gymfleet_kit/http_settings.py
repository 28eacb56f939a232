"""Settings that every service which listens has in common: where it listens, and who may call."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, SecretStr, model_validator

from gymfleet_kit.access import AccessRules, is_loopback
from gymfleet_kit.settings import ServiceSettings

HostName = Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?$")]
"""A name without a port, in lower case; `*.example.com` stands for all names below `example.com`."""
PageOrigin = Annotated[str, Field(pattern=r"^https?://[a-z0-9_.:\[\]-]{1,260}$")]
"""As browsers send it: scheme, host and, where it is not the scheme's own, port."""
ApiKey = Annotated[SecretStr, Field(min_length=8)]


class HttpSettings(ServiceSettings):
    """Where a service listens, and who may call."""

    key_holders: ClassVar[str] = "those who call"
    """Who is to be given the key, for the message that one is missing."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    allowed_hosts: tuple[HostName, ...] = ()
    """Names by which it is called, as a JSON list, `*.example.com` for all below one; `localhost` and IP addresses
    need none ([who may call](operations.md#who-may-call))."""
    allowed_origins: tuple[PageOrigin, ...] = ()
    """Web pages that may call, as a JSON list of origins such as `https://play.example.com`."""
    api_key: ApiKey | None = None
    """Asked of every caller, on every port, as `Authorization: Bearer <key>`, but for `/healthz`, `/readyz`,
    `/metrics` and `/openapi.json`; needed where `HOST` is no loopback address."""

    def rules(self, *open_prefixes: str) -> AccessRules:
        """The rules for the app, which asks for the key itself."""
        return AccessRules(self.api_key, self.allowed_hosts, self.allowed_origins, open_prefixes)

    @model_validator(mode="after")
    def others_need_a_key(self) -> Self:
        """Without a key everybody who reaches the service may use it: that is for this machine alone."""
        if self.api_key is None and not is_loopback(self.host):
            prefix = self.model_config.get("env_prefix", "")
            raise ValueError(
                f"{prefix}HOST {self.host} can be reached from other machines, so callers need a key: set "
                f"{prefix}API_KEY, and give it to {self.key_holders}"
            )
        return self
