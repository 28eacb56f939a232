"""The session API over one bare socket: the load generators' client, cheap compared with what it measures."""

from typing import Any, Final, Self

import msgspec
from gymfleet_client.errors import problem_error
from gymfleet_client.multiplex import FrameChannel
from gymfleet_contracts.frames import Op
from gymfleet_contracts.problems import Problem

_decode: Final = msgspec.msgpack.Decoder().decode


class Caller:
    """Calls to one gateway. Each raises the client's `ProblemError`, `DeadlinePassed` or `TransportError`."""

    def __init__(
        self, url: str, *, connections: int = 1, timeout_s: float = 120.0, connect_timeout_s: float = 10.0
    ) -> None:
        self._channel = FrameChannel(url, connections=connections, connect_timeout_s=connect_timeout_s)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        await self._channel.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.aclose()

    async def open(self, env: str, task_index: int, *, lease_s: float | None = None) -> dict[str, Any]:
        """Open a session."""
        body = {"env": env, "task_index": task_index, **({} if lease_s is None else {"lease_s": lease_s})}
        session: dict[str, Any] = await self._call(Op.OPEN, "", body, repeatable=False)
        return session

    async def step(self, session_id: str, index: int, action: str) -> dict[str, Any]:
        """Take a step, and return its result."""
        result: dict[str, Any] = await self._call(Op.STEP, session_id, {"index": index, "action": action})
        return result

    async def fork(self, session_id: str, count: int) -> list[dict[str, Any]]:
        """Return new children of a session."""
        children: list[dict[str, Any]] = await self._call(Op.FORK, session_id, {"count": count}, repeatable=False)
        return children

    async def get(self, session_id: str) -> dict[str, Any]:
        """Return the session as it is."""
        session: dict[str, Any] = await self._call(Op.GET, session_id, None)
        return session

    async def close(self, session_id: str) -> None:
        """End a session."""
        await self._call(Op.CLOSE, session_id, None)

    async def _call(self, op: Op, session_id: str, body: dict[str, Any] | None, *, repeatable: bool = True) -> Any:
        reply, _ = await self._channel.request(op, session_id, body, timeout_s=self._timeout_s, repeatable=repeatable)
        if reply.failed:
            raise problem_error(Problem.model_validate(_decode(reply.problem)))
        return _decode(reply.ok)
