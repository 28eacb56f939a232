"""Tickets for sockets: browsers cannot send a header when they open one, and a key in a URL ends up in logs."""

import hashlib
import secrets
from typing import Final, NamedTuple

from gymfleet_env_gateway.errors import RateLimited
from gymfleet_env_gateway.store import Store, StoreFull

TICKET_S: Final = 30.0
"""Lifetime of a ticket. A page opens its socket at once; a ticket that is read from the address later is worthless."""
MAX_TICKETS: Final = 4096


class Pass(NamedTuple):
    """A stand-in for a key that was presented before."""

    key_id: str
    sha256: str


class Tickets:
    """Tickets that were issued and not yet used. The store knows only their digests."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def issue(self, holder: Pass) -> str:
        """Issue a ticket that is valid once, for `TICKET_S`. Raises `RateLimited` when very many wait to be used."""
        ticket = secrets.token_urlsafe(32)
        try:
            await self._store.add(_digest(ticket), ":".join(holder).encode(), ttl_s=TICKET_S, limit=MAX_TICKETS)
        except StoreFull:
            raise RateLimited(f"{MAX_TICKETS} tickets wait to be used", wait_s=1.0) from None
        return ticket

    async def redeem(self, ticket: str) -> Pass | None:
        """Return the ticket's holder; None when it was never issued, was used before, or expired."""
        digest = _digest(ticket)
        value = await self._store.get(digest)
        # Of two callers that present the same ticket at once, only one deletes it.
        if value is None or not await self._store.delete(digest):
            return None
        key_id, _, sha256 = value.decode().partition(":")
        return Pass(key_id, sha256)


def _digest(ticket: str) -> str:
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).hexdigest()
