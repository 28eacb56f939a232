"""Who calls: API keys, the tenants that they belong to, and what those may do."""

import hmac
from dataclasses import dataclass
from typing import Final

from pydantic import SecretStr
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.errors import Unauthorized


@dataclass(frozen=True, slots=True)
class Tenant:
    """A party that shares the fleet with others; its sessions are its own."""

    name: str
    weight: float = 1.0
    """Its share of what all want at once, relative to the others' weights."""
    max_sessions: int | None = None
    steps_per_s: float | None = None


LOCAL: Final = Tenant("local")
"""Everybody, while the gateway has no keys."""


class Access:
    """Finds the tenant behind a request."""

    def __init__(self, api_key: SecretStr | None) -> None:
        self._api_key = api_key

    def tenant(self, connection: HTTPConnection) -> Tenant:
        """Compare the bearer token in constant time. Raises `Unauthorized`."""
        if self._api_key is None:
            return LOCAL
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        expected = self._api_key.get_secret_value().encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), expected):
            raise Unauthorized("send the header 'Authorization: Bearer <key>' with this gateway's key")
        return LOCAL
