"""Connect to Redis, and wait through an outage."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gymfleet_kit.retries import Retries

T = TypeVar("T")

RedisClient: TypeAlias = Redis

SOCKET_TIMEOUT_S: Final = 30.0
MAX_CONNECTIONS: Final = 32
MAX_BLOCK_S: Final = 5.0
"""The longest wait inside one command, well below the socket's timeout."""

OUTAGE: Final = (RedisConnectionError, RedisTimeoutError)
"""Errors that a restart or a lost connection raises, and, as subclasses, `REFUSED`."""
REFUSED: Final = (AuthenticationError, AuthorizationError)
"""Refused credentials, for which waiting does not help."""


class _SendsInTime:
    """Sends within the socket's timeout, as redis-py's connections do, but without a task for each command.

    Theirs send under `asyncio.wait_for`, which in Python 3.11 swallows a cancellation that arrives when the task has
    just ended: what should end goes on.
    """

    socket_timeout: float | None

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        """Send, and first connect and look whether the connection is alive, in one time limit."""
        timeout_s, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(timeout_s):
                await super().send_packed_command(command, check_health)  # type: ignore[misc]
        except TimeoutError:
            raise RedisTimeoutError(f"not sent within {timeout_s} s") from None
        finally:
            self.socket_timeout = timeout_s


def connect(url: str) -> RedisClient:
    """Return a client that reads and writes bytes, for `redis://`, `rediss://` or `unix:///path`.

    It connects at its first command and reconnects by itself when a connection was dropped.
    """
    over_tcp: dict[str, Any] = {} if url.startswith("unix:") else {"socket_keepalive": True}
    pool = BlockingConnectionPool.from_url(
        url,
        **over_tcp,
        # Hundreds of episodes publish at once: they must wait for a connection, not fail for lack of one.
        max_connections=MAX_CONNECTIONS,
        timeout=SOCKET_TIMEOUT_S,
        decode_responses=False,
        socket_timeout=SOCKET_TIMEOUT_S,
        socket_connect_timeout=5.0,
        health_check_interval=30,
        # One quick retry replaces a connection that a restart left dead by a fresh one;
        # longer outages are handled by `Patience`, which logs them.
        retry=Retry(ExponentialBackoff(cap=0.1, base=0.01), 1),
    )
    pool.connection_class = type("Connection", (_SendsInTime, pool.connection_class), {})
    return Redis.from_pool(pool)


async def disconnect(client: RedisClient) -> None:
    """Close all connections of a client."""
    closing: Any = client  # the published stubs predate `aclose`
    await closing.aclose()


def is_outage(error: RedisError) -> bool:
    """Return whether waiting can help."""
    return isinstance(error, OUTAGE) and not isinstance(error, REFUSED)


class Patience:
    """Repeat what an outage interrupted; log its beginning and its end once."""

    def __init__(self, **bound: str) -> None:
        self._retries = Retries("redis.lost", on=OUTAGE, unless=REFUSED, ended="redis.returned", bound=bound)

    async def call(self, operation: Callable[[], Awaitable[T]], *, timeout_s: float) -> T:
        """Run `operation`, which must be safe to repeat, until it succeeds.

        Raises the last connection error once Redis has been unreachable for `timeout_s`.
        """
        return await self._retries.call(operation, timeout_s=timeout_s)
