"""Access rules of a service: holders of its key may call it, and no web page that its operator did not name.

Every page that a browser shows can send requests to this machine and open sockets to it, and a page whose
name starts to resolve to this machine (DNS rebinding) can even read the answers. The rules here apply to
every app and every socket: `create_app` puts `AccessMiddleware` before everything else.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gymfleet_contracts import problems
from gymfleet_contracts.keys import key_digest
from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gymfleet_kit.problem_handlers import problem_response
from gymfleet_kit.problems import ServiceError

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json"})
"""Paths that need no key, for probes, scrapers and code generators; pages of other hosts may not use even these."""

_MAX_KNOWN_HOSTS: Final = 1024
_CORS: Final = (
    (b"access-control-expose-headers", b"retry-after, traceparent"),
    (b"vary", b"origin"),
)
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, traceparent"),
    (b"access-control-max-age", b"600"),
)

Headers = Mapping[bytes, bytes]


class Unauthorized(ServiceError):
    """No key, or a wrong one."""

    type = problems.UNAUTHORIZED
    title = "A valid API key is needed"
    status = 401

    def headers(self) -> dict[str, str]:
        """Return the header that says how to authenticate (RFC 9110, section 11.6.1)."""
        return {**super().headers(), "WWW-Authenticate": "Bearer"}


class Forbidden(ServiceError):
    """The key is valid, but not for this; or the caller is a web page that may not call."""

    type = problems.FORBIDDEN
    title = "The API key does not allow this"
    status = 403


class ForeignPage(Forbidden):
    """The caller is a web page, or uses a name of the service, that the operator did not list."""

    title = "Web pages of other hosts may not use this service"


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The operator's rules about callers."""

    api_key: SecretStr | None = None
    """Required everywhere but on `OPEN_PATHS`; if there is none, the app or the network decides who may call."""
    allowed_hosts: tuple[str, ...] = ()
    """Names of the service in addition to `localhost` and IP addresses; `*.example.com` covers all names below it."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may call, as `https://host[:port]`, in addition to those of this machine and of the service."""
    open_prefixes: tuple[str, ...] = ()
    """Prefixes of further paths that need no key."""


class AccessMiddleware:
    """Refuse HTTP requests and WebSocket handshakes by `AccessRules`, before reading anything of them."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._digest = None if rules.api_key is None else key_digest(rules.api_key.get_secret_value())
        self._expected = b"" if rules.api_key is None else f"Bearer {rules.api_key.get_secret_value()}".encode()
        self._names = frozenset(name for name in rules.allowed_hosts if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in rules.allowed_hosts if name.startswith("*"))
        self._origins = frozenset(origin.encode() for origin in rules.allowed_origins)
        self._open_prefixes = rules.open_prefixes
        self._hosts: dict[bytes, bool] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or answer with the reason for its refusal."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        # Of repeated headers the last counts: these rules guard against browsers, which repeat none.
        headers = dict(scope["headers"])
        refused = self._foreign(scope, headers)
        if refused is None and (origin := headers.get(b"origin")) in self._origins and scope["type"] == "http":
            send = _with_cors(send, origin or b"")
            if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
                await _answer_preflight(headers, send)
                return
        if refused is None and self._digest is not None:
            refused = self._stranger(scope, headers)
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await problem_response(refused.problem(), refused.headers())(scope, receive, send)

    def _foreign(self, scope: Scope, headers: Headers) -> ServiceError | None:
        """Return why a foreign web page is refused, by its origin and the host that it calls; None if it is not."""
        host = headers.get(b"host")
        if host is not None and not self._is_own_name(host):
            return ForeignPage(
                f"this service is not known as {host.decode('latin-1')[:256]!r}: call it by its IP address or as "
                "localhost, or have its operator list the name in ALLOWED_HOSTS"
            )
        origin = headers.get(b"origin")
        if origin is not None:
            if origin in self._origins or _is_own_page(origin, host) or is_local_page(origin.decode("latin-1")):
                return None
            return ForeignPage(
                f"the operator has not listed the web page's origin, {origin.decode('latin-1')[:256]!r}, in "
                "ALLOWED_ORIGINS"
            )
        # Requests for a page's images, scripts and forms have no origin; a link that a person follows is allowed.
        site = headers.get(b"sec-fetch-site", b"none")
        if site in (b"none", b"same-origin") or _is_navigation(scope, headers):
            return None
        return ForeignPage("a web page of another host embeds this address")

    def _is_own_name(self, host: bytes) -> bool:
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= _MAX_KNOWN_HOSTS:
                self._hosts.clear()
            known = self._hosts[host] = self._may_be_called(_without_port(host.decode("latin-1")))
        return known

    def _may_be_called(self, name: str) -> bool:
        # A name can be made to resolve to anything, but an address cannot: a page loaded from it is the service's own.
        return name in self._names or name.endswith(self._suffixes) or name == "localhost" or _is_address(name)

    def _stranger(self, scope: Scope, headers: Headers) -> ServiceError | None:
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(self._open_prefixes):
            return None
        given = headers.get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            return None
        scheme, _, key = given.decode("latin-1").partition(" ")
        # Compare digests, which all have the same length, so that the time taken says nothing about the key.
        matches = hmac.compare_digest(self._digest or "", key_digest(key.strip()))
        if scheme.lower() == "bearer" and matches:
            return None
        return Unauthorized("send this service's key: 'Authorization: Bearer <key>'")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_page(origin: str) -> bool:
    """Return whether the web page that a browser names was served by this machine."""
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False


def _is_own_page(origin: bytes, host: bytes | None) -> bool:
    scheme, _, place = origin.partition(b"://")
    return scheme in (b"http", b"https") and host is not None and place.lower() == host.lower()


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    return headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"


def _without_port(host: str) -> str:
    """Return `[::1]:80` as `::1` and `Name:80` as `name`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _with_cors(send: Send, origin: bytes) -> Send:
    """Return a `send` that lets the page read the answer."""

    async def allowing(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"access-control-allow-origin", origin), *_CORS]
            message = {**message, "headers": headers}
        await send(message)

    return allowing


async def _answer_preflight(headers: Headers, send: Send) -> None:
    """Answer a browser that asks whether a page may send its request."""
    answer = list(_PREFLIGHT)
    if headers.get(b"access-control-request-private-network") == b"true":
        answer.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b""})
