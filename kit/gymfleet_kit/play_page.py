"""A page on which a person plays an environment as an agent does: over the session API, with the same observations.

Env servers and gateways serve it. It gets the environment's name from its own address,
and everything else from the session API on the same host.
"""

import secrets
from functools import lru_cache
from pathlib import Path
from typing import Final

from fastapi.responses import HTMLResponse

_NONCE: Final = "@nonce@"


def play_page() -> HTMLResponse:
    """Return the page, with a policy that allows only its own script and style: observations are foreign text."""
    nonce = secrets.token_urlsafe(16)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return HTMLResponse(_page().replace(_NONCE, nonce), headers=headers)


@lru_cache(maxsize=1)
def _page() -> str:
    return Path(__file__).with_name("play.html").read_text(encoding="utf-8")
