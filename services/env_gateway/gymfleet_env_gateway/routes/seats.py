"""HTTP surface of a game's seats; the calls of a seat itself are those of the session API."""

from fastapi import APIRouter
from gymfleet_contracts.session import Seats
from gymfleet_kit.problems import problem_responses
from gymfleet_kit.session_problems import SessionLost, UnknownSession

from gymfleet_env_gateway.errors import Forbidden, NoGame, Unauthorized, Unavailable, UpstreamTimeout
from gymfleet_env_gateway.state import GatewayDep, TenantDep

router = APIRouter(prefix="/v1/sessions/{session_id}/seats", tags=["sessions"])


@router.post(
    "",
    responses=problem_responses(
        NoGame, Unauthorized, Forbidden, UnknownSession, SessionLost, Unavailable, UpstreamTimeout
    ),
)
async def seats(session_id: str, gateway: GatewayDep, tenant: TenantDep) -> Seats:
    """A session id for each player of a game, which sees and plays that seat alone."""
    return Seats(seats=await gateway.proxy.seats(tenant, session_id))
