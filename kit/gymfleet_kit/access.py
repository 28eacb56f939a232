"""Who may call a service: the holder of its key; without a key, this machine alone."""

import hmac
import ipaddress
from urllib.parse import urlsplit

from gymfleet_contracts import problems
from gymfleet_contracts.keys import key_digest
from pydantic import SecretStr
from starlette.requests import Request

from gymfleet_kit.problems import ServiceError


class Unauthorized(ServiceError):
    """No key, or a wrong one."""

    type = problems.UNAUTHORIZED
    title = "A valid API key is needed"
    status = 401

    def headers(self) -> dict[str, str]:
        """How to do better (RFC 9110, section 11.6.1)."""
        return {**super().headers(), "WWW-Authenticate": "Bearer"}


class Forbidden(ServiceError):
    """The key is valid, but not for this."""

    type = problems.FORBIDDEN
    title = "The API key does not allow this"
    status = 403


class OneKey:
    """A dependency of routes: lets the holder of the key pass.

    Args:
        key: without one everybody passes but web pages of other hosts; the settings allow that on loopback alone.
    """

    def __init__(self, key: SecretStr | None) -> None:
        self._digest = None if key is None else key_digest(key.get_secret_value())

    def __call__(self, request: Request) -> None:
        """Raises `Unauthorized` or `Forbidden`."""
        if self._digest is None:
            # Any web page may send requests to this machine; where there are no keys, nothing else would keep it out.
            if (origin := request.headers.get("origin")) and not is_local_page(origin):
                raise Forbidden("web pages of other hosts may not use a service without keys")
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        # Digests are compared: all have one length, and the time says nothing about the key.
        matches = hmac.compare_digest(self._digest, key_digest(key.strip()))
        if scheme.lower() != "bearer" or not matches:
            raise Unauthorized("send this service's key: 'Authorization: Bearer <key>'")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_page(origin: str) -> bool:
    """Whether the web page that a browser names was served by this machine."""
    try:
        return is_loopback(urlsplit(origin).hostname or "")
    except ValueError:
        return False
