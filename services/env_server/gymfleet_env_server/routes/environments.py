"""HTTP surface of environments: what is served here."""

from fastapi import APIRouter
from gymfleet_contracts.session import EnvironmentSpec
from gymfleet_kit.problems import problem_responses
from gymfleet_kit.session_problems import UnknownEnvironment

from gymfleet_env_server.routes.dependencies import PoolDep

router = APIRouter(prefix="/v1/environments", tags=["environments"])


@router.get("")
async def list_environments(pool: PoolDep) -> list[EnvironmentSpec]:
    """Every environment of this server."""
    return list(pool.specs.values())


@router.get("/{env}", responses=problem_responses(UnknownEnvironment))
async def get_environment(env: str, pool: PoolDep) -> EnvironmentSpec:
    """One environment of this server."""
    if (spec := pool.specs.get(env)) is None:
        raise UnknownEnvironment(f"{env[:64]!r} is not served here; served: {', '.join(sorted(pool.specs))}")
    return spec
