"""The sessions that an episode is played in: opened and forked with patience, and always closed."""

import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from gymfleet_client.errors import (
    ClientError,
    DeadlinePassed,
    EnvironmentFull,
    QuotaExceeded,
    RateLimited,
    TransportError,
    Unavailable,
)
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import AdmissibleActions, ExpertMove, OpenSession, Session, StepResult, ToolCall
from gymfleet_kit.retries import Retries

_OPEN_PAUSE_S: Final = 0.05
_OUTAGE_PATIENCE_S: Final = 60.0
"""Time for a gateway or env server that died to be restarted before the attempt fails."""
_LEASE_MARGIN_S: Final = 60.0
T = TypeVar("T")


class Sessions(Protocol):
    """The part of `gymfleet_client.stream.SessionStream` that an episode needs."""

    async def open(self, request: OpenSession, *, timeout_s: float = ...) -> Session:
        """Open a session."""

    async def fork(
        self, session_id: str, count: int = ..., *, index: int | None = ..., timeout_s: float = ...
    ) -> list[Session]:
        """Make children in the session's exact state, after `index` steps."""

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = ...) -> StepResult:
        """Apply one action; its index makes sure that it is applied exactly once."""

    async def close(self, session_id: str, *, timeout_s: float = ...) -> None:
        """Free the slot."""

    async def expert(self, session_id: str, *, index: int | None = ..., timeout_s: float = ...) -> ExpertMove:
        """Return what the environment's expert would do after `index` steps."""

    async def admissible_actions(
        self, session_id: str, *, index: int | None = ..., timeout_s: float = ...
    ) -> AdmissibleActions:
        """Return the actions that are possible after `index` steps."""

    async def image(self, session_id: str, sha256: str, *, timeout_s: float = ...) -> bytes:
        """Return an image of the session's last observation."""

    async def tool_action(self, session_id: str, call: ToolCall, *, timeout_s: float = ...) -> str:
        """Return the action that a call of one of the environment's tools stands for."""


class SessionDesk:
    """Opens, forks and closes the sessions of a group's task.

    Args:
        make_room: closes sessions of the group that can wait, and returns whether there were any.
    """

    def __init__(
        self, sessions: Sessions, group: GroupRequest, make_room: Callable[[], Coroutine[Any, Any, bool]]
    ) -> None:
        self._sessions = sessions
        self._make_room = make_room
        self._limits = group.limits
        self._task = group.task
        if self._task.lease_s is None:
            # Between two steps there is one reply, and possibly a pause while weights are replaced.
            lease_s = self._limits.generate_timeout_s + self._limits.step_timeout_s + _LEASE_MARGIN_S
            self._task = self._task.model_copy(update={"lease_s": min(lease_s, 86_400.0)})

    async def open(self) -> Session:
        """Open a session, waiting for a free slot as long as the gateway says: a full environment is no failure."""
        once = partial(self._sessions.open, self._task, timeout_s=self._limits.step_timeout_s)
        # Nothing was played, so no attempt is used up.
        outage = Retries(
            "gateway.awaited", on=(Unavailable, TransportError), unless=DeadlinePassed, first_pause_s=_OPEN_PAUSE_S,
            bound={"env": self._task.env},
        )  # fmt: skip
        return await self._when_free(partial(outage.call, once, timeout_s=_OUTAGE_PATIENCE_S))

    async def fork(self, session_id: str, count: int, index: int) -> list[Session]:
        """Make children in the session's exact state, waiting for free slots as `open` does."""
        limit = self._limits.step_timeout_s
        return await self._when_free(partial(self._sessions.fork, session_id, count, index=index, timeout_s=limit))

    async def close(self, session_id: str) -> None:
        """Close a session. One that cannot be closed ends with its lease; the outcome of the episode stays valid."""
        with contextlib.suppress(ClientError):
            await self._sessions.close(session_id, timeout_s=self._limits.step_timeout_s)

    async def _when_free(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        shortage = Retries(
            "environment.full", on=(EnvironmentFull, QuotaExceeded, RateLimited), first_pause_s=_OPEN_PAUSE_S,
            asked_s=lambda error: error.retry_after_s, level="info", bound={"env": self._task.env},
        )  # fmt: skip
        return await shortage.call(partial(self._or_make_room, call))

    async def _or_make_room(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call, and once more if sessions of this group were closed for it: it may wait for its own slots."""
        try:
            return await call()
        except (EnvironmentFull, QuotaExceeded):
            if not await self._make_room():
                raise
        return await call()
