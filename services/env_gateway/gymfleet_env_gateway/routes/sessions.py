"""The session API over REST, for a tenant: `gymfleet_kit.session_api` with this gateway's own problems."""

from typing import Final

from fastapi import FastAPI
from gymfleet_contracts.frames import Op
from gymfleet_kit.session_api.routes import Problems, install_session_routes
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.errors import (
    Forbidden,
    NotYourTurn,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    Unauthorized,
    Unavailable,
    UpstreamTimeout,
)
from gymfleet_env_gateway.session_proxy import TenantCalls
from gymfleet_env_gateway.state import get_gateway

_NO_SLOT: Final[Problems] = (QueueFull, QuotaExceeded, RateLimited)
_OF_CALLS: Final[dict[Op, Problems]] = {
    Op.OPEN: _NO_SLOT,
    Op.FORK: _NO_SLOT,
    Op.STEP: (RateLimited, NotYourTurn),
    Op.ACTIONS: (NotYourTurn,),
}
_OF_ALL: Final[Problems] = (Unauthorized, Forbidden, Unavailable, UpstreamTimeout)
_PROBLEMS: Final[dict[Op, Problems]] = {op: (*_OF_ALL, *_OF_CALLS.get(op, ())) for op in Op}


def install_sessions(app: FastAPI) -> None:
    """Add the routes to the gateway's app."""
    install_session_routes(app, _calls, _PROBLEMS)


def _calls(connection: HTTPConnection) -> TenantCalls:
    """Return the calls of the request's tenant. Raises `Unauthorized` and `Forbidden`."""
    gateway = get_gateway(connection)
    return TenantCalls(gateway.proxy, gateway.access.tenant(connection))
