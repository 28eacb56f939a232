"""HTTP surface of tickets: for callers that open a socket and cannot send a header with it."""

from fastapi import APIRouter, Request, Response, status
from gymfleet_contracts.session import Ticket
from gymfleet_kit.problems import problem_responses

from gymfleet_env_gateway.errors import Forbidden, RateLimited, Unauthorized, Unavailable
from gymfleet_env_gateway.state import GatewayDep
from gymfleet_env_gateway.tickets import TICKET_S

router = APIRouter(prefix="/v1/tickets", tags=["tickets"])


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    responses=problem_responses(Unauthorized, Forbidden, RateLimited, Unavailable),
)
async def issue_ticket(request: Request, response: Response, gateway: GatewayDep) -> Ticket:
    """A ticket opens one socket in the caller's name: `/v1/stream?ticket=...`, `/openenv/{env}/ws?ticket=...`."""
    response.headers["Cache-Control"] = "no-store"
    return Ticket(ticket=await gateway.access.issue_ticket(request), expires_in_s=TICKET_S)
