"""State that the routes share: one gateway's parts, made once per app."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from gymfleet_contracts.keys import Scope
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.access import Access, Tenant
from gymfleet_env_gateway.replica_registry import ReplicaRegistry
from gymfleet_env_gateway.session_proxy import SessionProxy
from gymfleet_env_gateway.settings import GatewaySettings
from gymfleet_env_gateway.streams import Streams


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway."""

    settings: GatewaySettings
    access: Access
    registry: ReplicaRegistry
    proxy: SessionProxy
    streams: Streams


def get_gateway(connection: HTTPConnection) -> Gateway:
    """Return the app's gateway."""
    gateway: Gateway = connection.app.state.gateway
    return gateway


# Dependencies are coroutines: FastAPI runs plain functions in a thread, which costs several times a step itself.
async def _gateway(connection: HTTPConnection) -> Gateway:
    return get_gateway(connection)


async def _player(connection: HTTPConnection) -> Tenant:
    """Return the tenant of a caller that may play. Raises `Unauthorized` and `Forbidden`."""
    return get_gateway(connection).access.tenant(connection)


async def _reader(connection: HTTPConnection) -> Tenant:
    """Return the tenant of a caller that may read. Raises `Unauthorized` and `Forbidden`."""
    return get_gateway(connection).access.tenant(connection, Scope.READ)


GatewayDep = Annotated[Gateway, Depends(_gateway)]
TenantDep = Annotated[Tenant, Depends(_player)]
ReaderDep = Annotated[Tenant, Depends(_reader)]
