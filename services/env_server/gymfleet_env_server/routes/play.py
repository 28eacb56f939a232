"""The page on which people play."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from gymfleet_kit.play_page import play_page
from gymfleet_kit.session_problems import UnknownEnvironment

from gymfleet_env_server.routes.dependencies import PoolDep

router = APIRouter(prefix="/play", include_in_schema=False)


@router.get("/{env}")
async def play(env: str, pool: PoolDep) -> HTMLResponse:
    """Play in a browser."""
    if env not in pool.specs:
        raise UnknownEnvironment(f"{env[:64]!r} is not served here; served: {', '.join(sorted(pool.specs))}")
    return play_page()
