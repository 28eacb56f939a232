"""The session API over REST without asyncio, for notebooks, scripts and Gymnasium loops."""

from collections.abc import Callable, Sequence
from typing import Self, TypeVar

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
from gymfleet_client._retries import repeated_blocking
from gymfleet_client.errors import DeadlinePassed, TransportError

__all__ = ["SyncGatewayClient"]

T = TypeVar("T")


class SyncGatewayClient:
    """The synchronous counterpart of `rest.GatewayClient`; safe to share between threads.

    `timeout_s` bounds each phase of a try (connect, write, read), as httpx counts them.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        http: httpx.Client | None = None,
    ) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(keepalive_expiry=_calls.KEEP_ALIVE_S)
        self._http = http or httpx.Client(base_url=base_url, headers=headers, limits=limits, trust_env=False)
        self._owns_http = http is None
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_connections()

    def close_connections(self) -> None:
        """Close the connections; `close` closes a session."""
        if self._owns_http:
            self._http.close()

    def environments(self) -> list[EnvironmentSpec]:
        """Return every environment that can be played."""
        return self._execute(_calls.environments())

    def environment(self, name: str) -> EnvironmentSpec:
        """Return one environment's spec."""
        return self._execute(_calls.environment(name))

    def open(self, request: OpenSession, *, timeout_s: float | None = None) -> Session:
        """Open a session and get its first observation."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        patience = Patience(limit_s, request)
        return self._patiently(lambda: _calls.open_session(patience.told(request)), patience, limit_s)

    def step(self, session_id: str, index: int, action: str, *, timeout_s: float | None = None) -> StepResult:
        """Apply one action, exactly once: `index` counts the session's steps from 0."""
        return self._execute(_calls.step(session_id, index, action), timeout_s)

    def steps(self, items: Sequence[SessionStep], *, timeout_s: float | None = None) -> list[StepResult | Problem]:
        """Apply one action in each of several sessions; one result or problem per item, in order."""
        return self._execute(_calls.steps(items), timeout_s)

    def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float | None = None
    ) -> list[Session]:
        """Make `count` children in the session's exact state; `index` is the number of steps that it has taken."""
        return self._execute(_calls.fork(session_id, count, index), timeout_s)

    def renew(self, session_id: str, lease_s: float | None = None, *, timeout_s: float | None = None) -> Session:
        """Extend the session's lease."""
        return self._execute(_calls.renew(session_id, lease_s), timeout_s)

    def get(self, session_id: str, *, index: int | None = None, timeout_s: float | None = None) -> Session:
        """Return the session's present state; `index`, if given, is the number of steps that it must have taken."""
        return self._execute(_calls.get(session_id, index), timeout_s)

    def close(self, session_id: str, *, timeout_s: float | None = None) -> None:
        """Close the session and free its slot."""
        self._execute(_calls.close(session_id), timeout_s)

    def expert(self, session_id: str, *, index: int | None = None, timeout_s: float | None = None) -> ExpertMove:
        """Return the expert's next move, after the `index` steps that the session has taken."""
        return self._execute(_calls.expert(session_id, index), timeout_s)

    def admissible_actions(
        self, session_id: str, *, index: int | None = None, timeout_s: float | None = None
    ) -> AdmissibleActions:
        """Return the actions possible now, after the `index` steps that the session has taken."""
        return self._execute(_calls.admissible_actions(session_id, index), timeout_s)

    def irreversible(self, session_id: str, index: int, action: str, *, timeout_s: float | None = None) -> bool:
        """Return whether this step could not be undone; it is not taken."""
        call = _calls.irreversible(session_id, index, action)
        return (self._execute(call, timeout_s)).irreversible

    def tool_action(self, session_id: str, call: ToolCall, *, timeout_s: float | None = None) -> str:
        """Return the action that corresponds to a tool call, to be sent as a step."""
        return (self._execute(_calls.tool_action(session_id, call), timeout_s)).action

    def image(self, session_id: str, sha256: str, *, timeout_s: float | None = None) -> bytes:
        """Return an image of the session's last observation, by its hash."""
        return self._execute(_calls.image(session_id, sha256), timeout_s)

    def seats(self, session_id: str, *, timeout_s: float | None = None) -> dict[str, str]:
        """Return a session id for each player of a game, by seat; it sees and plays only that seat."""
        return self._execute(_calls.seats(session_id), timeout_s).seats

    def _execute(self, call: _calls.Call[T], timeout_s: float | None = None) -> T:
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        return self._patiently(lambda: call, Patience(limit_s), limit_s)

    def _patiently(self, next_try: Callable[[], _calls.Call[T]], patience: Patience, limit_s: float) -> T:
        return repeated_blocking(lambda: self._send(next_try(), limit_s), patience.pause_s)

    def _send(self, call: _calls.Call[T], limit_s: float) -> T:
        tries = _calls.Tries(call)
        try:
            response = repeated_blocking(lambda: self._http.send(call.request(self._http, limit_s)), tries.pause_s)
        except httpx.TimeoutException:
            raise DeadlinePassed(f"no answer to {call.name} within {limit_s:g} s") from None
        except httpx.TransportError as error:
            raise TransportError(f"{call.name}: {error or type(error).__name__}") from error
        return call.read(response, tries.number)
