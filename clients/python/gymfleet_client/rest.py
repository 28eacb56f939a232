"""The session API over REST, for asyncio. `stream.SessionStream` is faster for many sessions."""

import asyncio
import math
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Self, TypeVar

import httpx
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.session import (
    AdmissibleActions,
    EnvironmentSpec,
    ExpertMove,
    OpenSession,
    Session,
    SessionStep,
    StepResult,
    ToolCall,
)

from gymfleet_client import _calls
from gymfleet_client._patience import Patience
from gymfleet_client._retries import repeated
from gymfleet_client.errors import DeadlinePassed, TransportError

__all__ = ["GatewayClient"]

T = TypeVar("T")

# httpx's pool compares every connection with every other at each call, so several
# small pools serve many concurrent calls at a fraction of the cost of one large pool.
_POOL_SIZE: Final = 8


class GatewayClient:
    """A client of the gateway or of a single env server.

    Args:
        base_url: `http(s)://host:port`.
        api_key: sent as a bearer token when given.
        timeout_s: the time per call, including repeats.
        max_concurrency: the number of calls in flight; further calls wait here rather than in httpx's pool.
        http: an `httpx.AsyncClient` to use instead of a new one; it is not closed.

    Every call raises `ProblemError` for a problem that the service answers, and
    `TransportError` (`DeadlinePassed`) if there is no answer. After a lost connection,
    calls that are safe to repeat are repeated; `open` and `fork` only if they were never sent.
    A call answered with 429 was not executed: it is made again after `Retry-After`, within its time.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        max_concurrency: int = 64,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=_POOL_SIZE, keepalive_expiry=_calls.KEEP_ALIVE_S)
        tls = ssl.create_default_context()  # made once: every client would load the certificates again
        self._owned = [
            httpx.AsyncClient(base_url=base_url, headers=headers, limits=limits, trust_env=False, verify=tls)
            for _ in range(0 if http else math.ceil(max_concurrency / _POOL_SIZE))
        ]
        pools = [http] if http else self._owned
        self._free = [pools[slot % len(pools)] for slot in range(max_concurrency)]
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(max_concurrency)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.gather(*(http.aclose() for http in self._owned))

    async def environments(self) -> list[EnvironmentSpec]:
        """Return every environment that can be played."""
        return await self._execute(_calls.environments())

    async def environment(self, name: str) -> EnvironmentSpec:
        """Return one environment's spec."""
        return await self._execute(_calls.environment(name))

    async def open(self, request: OpenSession, *, timeout_s: float | None = None) -> Session:
        """Open a session and get its first observation."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        patience = Patience(limit_s, request)
        return await self._patiently(lambda: _calls.open_session(patience.told(request)), patience, limit_s)

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float | None = None) -> StepResult:
        """Apply one action, exactly once: `index` counts the session's steps from 0."""
        return await self._execute(_calls.step(session_id, index, action), timeout_s)

    async def steps(
        self, items: Sequence[SessionStep], *, timeout_s: float | None = None
    ) -> list[StepResult | Problem]:
        """Apply one action in each of several sessions; one result or problem per item, in order."""
        return await self._execute(_calls.steps(items), timeout_s)

    async def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float | None = None
    ) -> list[Session]:
        """Make `count` children in the session's exact state; `index` is the number of steps that it has taken."""
        return await self._execute(_calls.fork(session_id, count, index), timeout_s)

    async def renew(self, session_id: str, lease_s: float | None = None, *, timeout_s: float | None = None) -> Session:
        """Extend the session's lease."""
        return await self._execute(_calls.renew(session_id, lease_s), timeout_s)

    async def get(self, session_id: str, *, index: int | None = None, timeout_s: float | None = None) -> Session:
        """Return the session's present state; `index`, if given, is the number of steps that it must have taken."""
        return await self._execute(_calls.get(session_id, index), timeout_s)

    async def close(self, session_id: str, *, timeout_s: float | None = None) -> None:
        """Close the session and free its slot."""
        await self._execute(_calls.close(session_id), timeout_s)

    async def expert(self, session_id: str, *, index: int | None = None, timeout_s: float | None = None) -> ExpertMove:
        """Return the expert's next move, after the `index` steps that the session has taken."""
        return await self._execute(_calls.expert(session_id, index), timeout_s)

    async def admissible_actions(
        self, session_id: str, *, index: int | None = None, timeout_s: float | None = None
    ) -> AdmissibleActions:
        """Return the actions possible now, after the `index` steps that the session has taken."""
        return await self._execute(_calls.admissible_actions(session_id, index), timeout_s)

    async def irreversible(self, session_id: str, index: int, action: str, *, timeout_s: float | None = None) -> bool:
        """Return whether this step could not be undone; it is not taken."""
        call = _calls.irreversible(session_id, index, action)
        return (await self._execute(call, timeout_s)).irreversible

    async def tool_action(self, session_id: str, call: ToolCall, *, timeout_s: float | None = None) -> str:
        """Return the action that corresponds to a tool call, to be sent as a step."""
        return (await self._execute(_calls.tool_action(session_id, call), timeout_s)).action

    async def image(self, session_id: str, sha256: str, *, timeout_s: float | None = None) -> bytes:
        """Return an image of the session's last observation, by its hash."""
        return await self._execute(_calls.image(session_id, sha256), timeout_s)

    async def seats(self, session_id: str, *, timeout_s: float | None = None) -> dict[str, str]:
        """Return a session id for each player of a game, by seat; it sees and plays only that seat."""
        return (await self._execute(_calls.seats(session_id), timeout_s)).seats

    async def _execute(self, call: _calls.Call[T], timeout_s: float | None = None) -> T:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return await self._patiently(lambda: call, Patience(limit_s), limit_s)

    async def _patiently(self, next_try: Callable[[], _calls.Call[T]], patience: Patience, limit_s: float) -> T:
        tried: list[_calls.Call[T]] = []

        async def once() -> T:
            tried.append(next_try())
            # Between tries the slot is free: a call that ends the shortage may need it.
            return await self._in_turn(tried[-1], limit_s)

        try:
            async with asyncio.timeout(limit_s):
                return await repeated(once, patience.pause_s)
        except (TimeoutError, httpx.TimeoutException):
            raise DeadlinePassed(f"no answer to {tried[-1].name} within {limit_s:g} s") from None
        except httpx.TransportError as error:
            raise TransportError(f"{tried[-1].name}: {error or type(error).__name__}") from error

    async def _in_turn(self, call: _calls.Call[T], limit_s: float) -> T:
        async with self._slots:
            http = self._free.pop()
            try:
                return await self._with_repeats(http, call, limit_s)
            finally:
                self._free.append(http)

    @staticmethod
    async def _with_repeats(http: httpx.AsyncClient, call: _calls.Call[T], limit_s: float) -> T:
        tries = _calls.Tries(call)
        response = await repeated(lambda: http.send(call.request(http, limit_s)), tries.pause_s)
        return call.read(response, tries.number)
