"""HTTP surface of environments: what can be played."""

from fastapi import APIRouter
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.problems import problem_responses
from gymfleet_kit.session_problems import UnknownEnvironment

from gymfleet_env_gateway.errors import Forbidden, Unauthorized, Unavailable
from gymfleet_env_gateway.state import GatewayDep, ReaderDep

router = APIRouter(prefix="/v1/environments", tags=["environments"])


@router.get("", responses=problem_responses(Unauthorized, Forbidden))
async def environments(gateway: GatewayDep, tenant: ReaderDep) -> list[EnvironmentSpec]:
    """Every environment of the fleet that the caller may play, by name."""
    return [spec for spec in gateway.registry.environments() if tenant.may_play(spec.name)]


@router.get("/{env}", responses=problem_responses(Unauthorized, Forbidden, UnknownEnvironment, Unavailable))
async def environment(env: str, gateway: GatewayDep, _: ReaderDep) -> EnvironmentSpec:
    """One environment's spec."""
    return gateway.registry.environment(env)
