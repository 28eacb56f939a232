"""Authentication: API keys, the tenants that they belong to, and what they permit."""

import base64
import binascii
import hmac
import time
from pathlib import Path
from typing import Final

import structlog
from gymfleet_contracts.keys import Scope, key_digest, key_id
from gymfleet_kit.access import Forbidden, Unauthorized
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from gymfleet_env_gateway.store import MemoryStore
from gymfleet_env_gateway.tenants import DEFAULT, LOCAL, Grant, Tenant, read_tenants
from gymfleet_env_gateway.tickets import Pass, Tickets

__all__ = ["LOCAL", "Access", "Tenant"]

log = structlog.get_logger()

_CHECK_EVERY_S: Final = 1.0
_ALL: Final = frozenset(Scope)
# An unknown id is compared with this, so that it takes as long as a known one.
_NOBODY: Final = Grant(tenant=LOCAL, scopes=frozenset(), sha256=key_digest(""))
_HOLDER: Final = "gymfleet.holder"
_LOCAL: Final = Grant(tenant=LOCAL, scopes=_ALL, sha256="")


class Access:
    """Finds the tenant behind a request.

    Args:
        api_key: the one key, of the tenant `default`.
        tenants: the file of tenants; read again when it changes, so that keys come and go without a restart.
        tickets: tickets that replace a key when a socket is opened.

    With neither a key nor a file, every caller is the tenant `local`: the settings allow that only on loopback.
    """

    def __init__(self, api_key: SecretStr | None, tenants: Path | None = None, tickets: Tickets | None = None) -> None:
        self._tickets = tickets or Tickets(MemoryStore())
        self._single = None
        if api_key is not None:
            self._single = Grant(tenant=DEFAULT, scopes=_ALL, sha256=key_digest(api_key.get_secret_value()))
        self._file = tenants
        self._grants: dict[str, Grant] = {}
        self._seen: tuple[int, int, int] | None = None
        self._check_at = 0.0
        self._generation = 0
        if tenants is not None:
            self._seen = _signature(tenants)
            self._grants = read_tenants(tenants)
            self._check_at = time.monotonic() + _CHECK_EVERY_S

    @property
    def generation(self) -> int:
        """A number that grows when the file of tenants changes; open connections then look up their tenant again."""
        self._refresh()
        return self._generation

    def tenant(self, connection: HTTPConnection, scope: Scope = Scope.PLAY) -> Tenant:
        """Return the tenant whose key the request carries. Raises `Unauthorized`, and `Forbidden` without the scope."""
        grant = self._grant(connection)
        if not grant.allows(scope):
            raise Forbidden(f"this key has no scope {scope.value!r}; use one that has it")
        return grant.tenant

    async def admit(self, websocket: HTTPConnection) -> Tenant:
        """Return the tenant as `tenant` does, for a socket; a ticket in its query replaces the key from then on.

        Also raises `Unavailable` when the gateways' tickets cannot be looked up.
        """
        ticket = websocket.query_params.get("ticket")
        if ticket is not None and self._asks_for_keys:
            holder = await self._tickets.redeem(ticket)
            if holder is None:
                raise Unauthorized("this ticket was used or ran out; get another from POST /v1/tickets")
            websocket.scope[_HOLDER] = holder
        return self.tenant(websocket)

    async def issue_ticket(self, connection: HTTPConnection) -> str:
        """Issue a ticket to the holder of the request's key. Raises as `tenant` does, and `RateLimited`."""
        self.tenant(connection)
        return await self._tickets.issue(_shown(connection))

    @property
    def _asks_for_keys(self) -> bool:
        return self._single is not None or self._file is not None

    def _grant(self, connection: HTTPConnection) -> Grant:
        if not self._asks_for_keys:
            return _LOCAL
        self._refresh()
        shown = _shown(connection)
        grant = self._single or self._grants.get(shown.key_id, _NOBODY)
        if not hmac.compare_digest(grant.sha256, shown.sha256) or grant is _NOBODY:
            raise Unauthorized(
                "send a valid key of this gateway: 'Authorization: Bearer <key>', or as the password of Basic"
            )
        return grant

    def _refresh(self) -> None:
        """Read the file again if it changed, checking at most once a second. An unreadable file changes nothing."""
        if self._file is None or (now := time.monotonic()) < self._check_at:
            return
        self._check_at = now + _CHECK_EVERY_S
        seen = _signature(self._file)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._grants = read_tenants(self._file)
        except ValueError as error:
            log.error("tenants.unreadable", reason=str(error), kept=len(self._grants))
            return
        self._generation += 1
        log.info("tenants.read", keys=len(self._grants))


def _shown(connection: HTTPConnection) -> Pass:
    """Return the key of the request's header, or the one that its ticket stood for."""
    passed: Pass | None = connection.scope.get(_HOLDER)
    if passed is not None:
        return passed
    key = _credential(connection.headers.get("authorization", ""))
    return Pass(key_id(key) or "", key_digest(key))


def _credential(authorization: str) -> str:
    """Return the key in the header's value; empty when there is none."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Return a signature that changes with the file, also when another file takes its name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
