"""The server under examination, and the parts that the checks of every protocol need."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import urlsplit, urlunsplit

import httpx

CALL_TIMEOUT_S: Final = 10.0
SHOWN_CHARS: Final = 160
_KEEP_ALIVE_S: Final = 2.0  # well under the 5 s after which common servers close an idle connection
_MAX_CONNECTIONS: Final = 64


class Failed(Exception):
    """The promise does not hold; the message says what was seen, and what would be right."""


class NotApplicable(Exception):
    """The promise says nothing about this environment; the message says why."""


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """A base URL, the connections to it, and the headers that every request carries."""

    url: str
    http: httpx.AsyncClient
    headers: Mapping[str, str]

    @classmethod
    def at(cls, url: str, api_key: str | None = None) -> Self:
        """Make one from a URL. Raises ValueError for anything but `http(s)://host...`."""
        parts = urlsplit(url.strip())
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"not a URL of a server: {url!r}; give it as http://host:port")
        _ = parts.port  # this raises ValueError when the port is not a number
        base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=_MAX_CONNECTIONS, keepalive_expiry=_KEEP_ALIVE_S)
        client = httpx.AsyncClient(headers=headers, limits=limits, timeout=CALL_TIMEOUT_S, trust_env=False)
        return cls(base, client, headers)

    def below(self, path: str) -> Self:
        """Return the same server from a path on."""
        return replace(self, url=self.url + path)

    def socket_url(self, path: str) -> str:
        """Return the WebSocket URL of a path below the base."""
        return "ws" + self.url.removeprefix("http") + path

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send one request to a path below the base; errors of the transport go to the caller."""
        return await self.http.request(method, self.url + path, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()


class Target(ABC):
    """One environment of a server, for one check; everything that the check opens is closed after it."""

    def __init__(self, server: ServerUnderTest, env: str) -> None:
        self.server = server
        self.env = env

    def lacks(self, need: str) -> str | None:  # noqa: ARG002 - for those that know more of their environment
        """Return why a check that needs this does not apply; None if it does."""
        return None

    @abstractmethod
    async def release(self) -> None:
        """Close everything still open. A failure here does not affect the verdict."""


def excerpt(text: object, limit: int = SHOWN_CHARS) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else f"{line[:limit]}…"


def require(holds: bool, otherwise: str) -> None:
    """Raise `Failed` with `otherwise` unless `holds` is true."""
    if not holds:
        raise Failed(otherwise)


def shown(response: httpx.Response) -> str:
    """Return status, media type and the beginning of the body."""
    return f"{response.status_code} {excerpt(response.text or '(empty)', 120)}"


def decoded(response: httpx.Response, status: int = 200) -> Any:
    """Return the JSON body of an answer with this status. Raises `Failed`."""
    require(response.status_code == status, f"saw {shown(response)}; {status} would be right")
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        raise Failed(f"the body is not JSON: {excerpt(response.text)}") from None
