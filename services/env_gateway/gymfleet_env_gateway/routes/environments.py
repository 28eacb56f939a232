"""What can be played."""

from fastapi import APIRouter
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.problems import problem_responses
from gymfleet_kit.session_problems import UnknownEnvironment

from gymfleet_env_gateway.errors import Unauthorized, Unavailable
from gymfleet_env_gateway.state import GatewayDep, TenantDep

router = APIRouter(prefix="/v1/environments", tags=["environments"])


@router.get("", responses=problem_responses(Unauthorized))
async def environments(gateway: GatewayDep, _: TenantDep) -> list[EnvironmentSpec]:
    """Every environment of the fleet, by name."""
    return gateway.fleet.environments()


@router.get("/{env}", responses=problem_responses(Unauthorized, UnknownEnvironment, Unavailable))
async def environment(env: str, gateway: GatewayDep, _: TenantDep) -> EnvironmentSpec:
    """One environment's spec."""
    return gateway.fleet.environment(env)
