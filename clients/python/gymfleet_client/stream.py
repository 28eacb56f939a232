"""The session API over `WS /v1/stream`: the fast path for many concurrent episodes."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from gymfleet_contracts.frames import Op, RawReply
from gymfleet_contracts.observation import ImageContent
from gymfleet_contracts.session import (
    AdmissibleActions,
    ExpertMove,
    Fork,
    Irreversibility,
    OpenSession,
    RenewLease,
    Session,
    StepResult,
    ToolAction,
    ToolCall,
)
from pydantic import BaseModel, ValidationError

from gymfleet_client._connected import Connected
from gymfleet_client._patience import Patience
from gymfleet_client._retries import repeated
from gymfleet_client._trace import current_traceparent
from gymfleet_client.errors import ClientError, TransportError, UnknownSession, parse_problem, problem_error
from gymfleet_client.multiplex import UNREADABLE, FrameChannel

__all__ = ["SessionStream"]

M = TypeVar("M", bound=BaseModel)
_decode: Final = msgspec.msgpack.Decoder().decode


class SessionStream(Connected):
    """Many sessions over one or a few sockets. Safe for concurrent use within one event loop.

    Every call raises `ProblemError` for a problem that the service answers, `DeadlinePassed`
    after its `timeout_s`, and `TransportError` if the connection is lost for good. Calls are
    repeated over a new connection (a step's index makes that safe), except `open` and `fork`,
    because they make sessions; a session that is made after its caller gave up is closed. A call
    answered with 429 was not executed: it is made again after the requested pause, within `timeout_s`.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        connect_timeout_s: float = 10.0,
        connections: int = 1,
    ) -> None:
        self._channel = FrameChannel(
            base_url, api_key=api_key, connect_timeout_s=connect_timeout_s, connections=connections
        )
        self._closing: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Connect now rather than at the first call."""
        await self._channel.connect()

    async def aclose(self) -> None:
        """Close the sockets. Sessions stay open on the server until closed or expired."""
        await self._channel.aclose()
        await asyncio.gather(*self._closing)

    async def open(self, request: OpenSession, *, timeout_s: float = 60.0) -> Session:
        """Open a session and get its first observation."""
        patience = Patience(timeout_s, request)

        def body() -> dict[str, Any]:
            return patience.told(request).model_dump(mode="json", exclude_none=True)

        return _model(Session, await self._patiently(Op.OPEN, "", body, patience, repeatable=False))

    async def step(self, session_id: str, index: int, action: str, *, timeout_s: float = 60.0) -> StepResult:
        """Apply one action, exactly once: `index` counts the session's steps from 0."""
        body = {"index": index, "action": action}
        return _model(StepResult, await self._call(Op.STEP, session_id, body, timeout_s))

    async def fork(
        self, session_id: str, count: int = 1, *, index: int | None = None, timeout_s: float = 60.0
    ) -> list[Session]:
        """Make `count` children in the session's exact state; `index` is the number of steps that it has taken."""
        body = Fork(count=count, index=index).model_dump(mode="json", exclude_none=True)
        children = await self._call(Op.FORK, session_id, body, timeout_s, repeatable=False)
        if not isinstance(children, list):
            raise TransportError("the server's answer to fork is not a list")
        return [_model(Session, child) for child in children]

    async def renew(self, session_id: str, lease_s: float | None = None, *, timeout_s: float = 30.0) -> Session:
        """Extend the session's lease."""
        body = RenewLease(lease_s=lease_s).model_dump(mode="json", exclude_none=True)
        return _model(Session, await self._call(Op.LEASE, session_id, body, timeout_s))

    async def get(self, session_id: str, *, index: int | None = None, timeout_s: float = 30.0) -> Session:
        """Return the session's present state; `index`, if given, is the number of steps that it must have taken."""
        return _model(Session, await self._call(Op.GET, session_id, _at(index), timeout_s))

    async def close(self, session_id: str, *, timeout_s: float = 30.0) -> None:
        """Close the session and free its slot."""
        reply, times_sent = await self._channel.request(
            Op.CLOSE, session_id, None, timeout_s=timeout_s, repeatable=True, trace=current_traceparent()
        )
        try:
            _result(reply)
        except UnknownSession:
            if times_sent == 1:  # otherwise an earlier try closed it and its answer was lost
                raise

    async def expert(self, session_id: str, *, index: int | None = None, timeout_s: float = 60.0) -> ExpertMove:
        """Return the expert's next move, after the `index` steps that the session has taken."""
        return _model(ExpertMove, await self._call(Op.EXPERT, session_id, _at(index), timeout_s))

    async def admissible_actions(
        self, session_id: str, *, index: int | None = None, timeout_s: float = 60.0
    ) -> AdmissibleActions:
        """Return the actions possible now, after the `index` steps that the session has taken."""
        return _model(AdmissibleActions, await self._call(Op.ACTIONS, session_id, _at(index), timeout_s))

    async def irreversible(self, session_id: str, index: int, action: str, *, timeout_s: float = 60.0) -> bool:
        """Return whether this step could not be undone; it is not taken."""
        body = {"index": index, "action": action}
        return _model(Irreversibility, await self._call(Op.IRREVERSIBLE, session_id, body, timeout_s)).irreversible

    async def tool_action(self, session_id: str, call: ToolCall, *, timeout_s: float = 60.0) -> str:
        """Return the action that corresponds to a tool call, to be sent as a step."""
        answer = await self._call(Op.TOOL, session_id, call.model_dump(mode="json"), timeout_s)
        return _model(ToolAction, answer).action

    async def image(self, session_id: str, sha256: str, *, timeout_s: float = 60.0) -> bytes:
        """Return an image of the session's last observation, by its hash."""
        answer = await self._call(Op.IMAGE, session_id, {"sha256": sha256}, timeout_s)
        return _model(ImageContent, answer).content

    async def _call(
        self, op: Op, session_id: str, body: dict[str, Any] | None, timeout_s: float, *, repeatable: bool = True
    ) -> Any:
        return await self._patiently(op, session_id, lambda: body, Patience(timeout_s), repeatable=repeatable)

    async def _patiently(
        self,
        op: Op,
        session_id: str,
        body: Callable[[], dict[str, Any] | None],
        patience: Patience,
        *,
        repeatable: bool,
    ) -> Any:
        trace = current_traceparent()

        async def once() -> Any:
            reply, _ = await self._channel.request(
                op, session_id, body(), timeout_s=patience.remaining_s, repeatable=repeatable, trace=trace,
                if_late=None if repeatable else self._unclaimed,
            )  # fmt: skip
            return _result(reply)

        return await repeated(once, patience.pause_s)

    def _unclaimed(self, reply: RawReply) -> None:
        closing = asyncio.create_task(self._close_made(reply))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _close_made(self, reply: RawReply) -> None:
        """Close the sessions that a call made after its caller gave up: nobody else has their ids."""
        with suppress(ClientError):
            made = _result(reply)
            for session in made if isinstance(made, list) else [made]:
                await self.close(_model(Session, session).session_id)


def _at(index: int | None) -> dict[str, Any] | None:
    return None if index is None else {"index": index}


def _result(reply: RawReply) -> Any:
    if reply.failed:
        raise problem_error(parse_problem(_decoded(reply.problem), 500))
    return _decoded(reply.ok) if reply.ok != msgspec.Raw() else None


def _decoded(body: msgspec.Raw) -> Any:
    try:
        return _decode(body)
    except UNREADABLE as error:
        raise TransportError(f"the server's answer is unreadable: {error}") from None


def _model(kind: type[M], body: Any) -> M:
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise TransportError(f"the server's answer is not a {kind.__name__}: {error}") from None
