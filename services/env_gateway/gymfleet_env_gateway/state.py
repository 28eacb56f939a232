"""What the routes share: one gateway's parts, made once per app."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from gymfleet_contracts.keys import Scope
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.access import Access, Tenant
from gymfleet_env_gateway.metrics import Metrics
from gymfleet_env_gateway.relay import Relay
from gymfleet_env_gateway.routing import Fleet
from gymfleet_env_gateway.settings import GatewaySettings


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway."""

    settings: GatewaySettings
    access: Access
    metrics: Metrics
    fleet: Fleet
    relay: Relay


def get_gateway(connection: HTTPConnection) -> Gateway:
    """The app's gateway."""
    gateway: Gateway = connection.app.state.gateway
    return gateway


def get_tenant(connection: HTTPConnection) -> Tenant:
    """The tenant of a caller who may play. Raises `Unauthorized` and `Forbidden`."""
    return get_gateway(connection).access.tenant(connection)


def get_reader(connection: HTTPConnection) -> Tenant:
    """The tenant of a caller who may read. Raises `Unauthorized` and `Forbidden`."""
    return get_gateway(connection).access.tenant(connection, Scope.READ)


GatewayDep = Annotated[Gateway, Depends(get_gateway)]
TenantDep = Annotated[Tenant, Depends(get_tenant)]
ReaderDep = Annotated[Tenant, Depends(get_reader)]
