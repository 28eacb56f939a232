"""What the routes share: one gateway's parts, made once per app."""

import hmac
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.errors import Unauthorized
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.relay import Relay
from gymfleet_env_gateway.routing import Fleet
from gymfleet_env_gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway."""

    settings: GatewaySettings
    metrics: Metrics
    fleet: Fleet
    relay: Relay

    def check_key(self, connection: HTTPConnection) -> None:
        """Compare the bearer token in constant time. Raises `Unauthorized`."""
        if self.settings.api_key is None:
            return
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        expected = self.settings.api_key.get_secret_value().encode()
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), expected):
            raise Unauthorized("send the header 'Authorization: Bearer <key>' with this gateway's key")


def get_gateway(connection: HTTPConnection) -> Gateway:
    """The app's gateway."""
    gateway: Gateway = connection.app.state.gateway
    return gateway


def authorised_gateway(connection: HTTPConnection) -> Gateway:
    """The app's gateway, for a caller with the key."""
    gateway = get_gateway(connection)
    gateway.check_key(connection)
    return gateway


GatewayDep = Annotated[Gateway, Depends(authorised_gateway)]
