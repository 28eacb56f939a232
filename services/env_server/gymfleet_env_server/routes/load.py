"""HTTP surface of the server's load, on which gateways base their decisions."""

from fastapi import APIRouter
from gymfleet_contracts.session import ServerLoad

from gymfleet_env_server.routes.dependencies import PoolDep

router = APIRouter(prefix="/v1/load", tags=["operations"])


@router.get("")
async def get_load(pool: PoolDep) -> ServerLoad:
    """Open sessions by environment and owner. Asks no shard: it is cheap, and a tenth of a second old."""
    return pool.load
