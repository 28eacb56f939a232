"""The page on which people play. It holds nothing itself: its calls need a key, if the gateway has any."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse
from gymfleet_kit.play_page import play_page

router = APIRouter(prefix="/play", include_in_schema=False)


@router.get("/{env}")
async def play(env: str) -> HTMLResponse:  # noqa: ARG001 - the page reads it from its address
    """Play in a browser."""
    return play_page()
