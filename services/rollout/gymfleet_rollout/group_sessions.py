"""The sessions of a group's nodes: some that wait to be played on are closed, and recreated when they are needed."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final

from gymfleet_client.errors import EnvironmentFailed
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import ForkSupport, Session, StepResult

from gymfleet_rollout.errors import StrategyError
from gymfleet_rollout.parts import Parts
from gymfleet_rollout.sessions import SessionDesk
from gymfleet_rollout.tree import Node

MAX_WAITING: Final = 64
"""Sessions of a group that stay open although nobody is using them at the moment."""


class GroupSessions:
    """Opens, forks and closes the sessions of one attempt at a group.

    If an environment reaches the same state by the same actions, only the last `MAX_WAITING` sessions that nobody is
    using stay open, and half as many each time that it has no free slot: searches that held what they and others wait
    for would wait for ever. A node whose session was closed gets another: a fork of the nearest node above it that has
    one, or a new one, in which the actions that led on from there are repeated. A tree can then be as large as its
    budget allows, and needs no more sessions of the environment than these.

    Args:
        together: whether the samples are played together, and may form a tree.
    """

    def __init__(self, parts: Parts, group: GroupRequest, *, together: bool) -> None:
        can = parts.spec.capabilities
        self._desk = SessionDesk(parts.sessions, group, self._make_room)
        self._sessions = parts.sessions
        self._timeout_s = group.limits.step_timeout_s
        self._forks_by_replay = can.fork is ForkSupport.REPLAY
        self._can_replay = (
            together and can.deterministic and can.stable_observations and can.fork is not ForkSupport.NONE
        )
        self._max_waiting = MAX_WAITING
        self._open: set[str] = set()
        self._waiting: dict[str, Node] = {}
        """The newest node of each session, the least recently used first."""
        self._gone: set[str] = set()
        """The sessions that were closed to make room."""
        self._in_use: Counter[str] = Counter()
        self._making = asyncio.Lock()
        self._closed = False
        self.num_forks = 0
        self.num_replayed = 0
        """Steps that were repeated to reach a state again."""

    async def open(self) -> Session:
        """Open a session of the group's task."""
        (session,) = await self._kept(self._opened())
        return session

    async def fork(self, node: Node, count: int) -> list[Session]:
        """Make sessions in the state of a node."""
        await self.take(node)
        try:
            return await self._forked(node, count)
        finally:
            await self.give_back(node)

    async def take(self, node: Node) -> None:
        """Keep the session of a node open until `give_back`, and recreate it if it was closed.

        Raises EnvironmentFailed if the environment reaches another state than before.
        """
        async with self._making:
            if node.session_id in self._gone:
                await self._make_again(node)
            self._in_use[node.session_id] += 1
            if node.session_id in self._waiting:
                self._waiting[node.session_id] = self._waiting.pop(node.session_id)

    async def give_back(self, node: Node) -> None:
        """Allow the session of a node to be closed once too many wait."""
        self._in_use[node.session_id] -= 1
        await self._close_surplus()

    async def _make_room(self) -> bool:
        """Let fewer sessions wait from now on, if one of them can be closed; return whether one was."""
        if not self._idle:
            return False
        self._max_waiting = min(self._max_waiting, len(self._waiting) // 2)
        await self._close_surplus()
        return True

    @property
    def _idle(self) -> list[Node]:
        return [one for one in self._waiting.values() if not self._in_use[one.session_id]]

    async def _close_surplus(self) -> None:
        """Close the sessions that were not used for longest, if too many wait."""
        surplus = self._idle[: max(0, len(self._waiting) - self._max_waiting)]
        for one in surplus:
            one.context = None  # which is long, and can be had from its turns
            self._gone.add(one.session_id)
            del self._waiting[one.session_id]
        await asyncio.gather(*[self._close(one.session_id) for one in surplus])

    def arrived(self, node: Node) -> None:
        """Note the node that a session has reached."""
        self._waiting.pop(node.session_id, None)
        if self._can_replay and not node.seats:
            self._waiting[node.session_id] = node

    def left(self, node: Node) -> None:
        """Note that a session is about to leave a node."""
        self._waiting.pop(node.session_id, None)

    async def release(self, node: Node) -> None:
        """Close the session of a node that is not played on."""
        self.left(node)
        if node.session_id in self._open:  # else it was closed to make room
            await self._close(node.session_id)

    async def close(self) -> None:
        """Close all sessions. Tasks that are still running can open no more."""
        self._closed = True
        await asyncio.gather(*map(self._desk.close, [*self._open]))

    async def _opened(self) -> list[Session]:
        return [await self._desk.open()]

    async def _forked(self, node: Node, count: int) -> list[Session]:
        sessions = await self._kept(self._desk.fork(node.session_id, count, node.index))
        self.num_forks += count
        self.num_replayed += count * node.index if self._forks_by_replay else 0
        return sessions

    async def _kept(self, making: Coroutine[Any, Any, list[Session]]) -> list[Session]:
        """Return new sessions, and make sure that they will be closed."""
        sessions = await making
        self._open |= {session.session_id for session in sessions}
        if self._closed:
            await self.close()
            raise StrategyError("a session was opened after the play was over")
        return sessions

    async def _close(self, session_id: str) -> None:
        await self._desk.close(session_id)
        self._open.discard(session_id)

    async def _make_again(self, node: Node) -> None:
        """Give a node a new session in its state."""
        path = node.path()
        standing = {one.id: one for one in self._idle}
        place = next((place for place in range(len(path) - 1, -1, -1) if path[place].id in standing), None)
        if place is None:
            session = await self.open()
            _require_same(path[0], session)
        else:
            above = standing[path[place].id]
            self._in_use[above.session_id] += 1  # or it might be closed to make room
            try:
                (session,) = await self._forked(above, 1)
            finally:
                self._in_use[above.session_id] -= 1
        for before, one in zip(path[place or 0 :], path[(place or 0) + 1 :], strict=False):
            if one.turn is None or one.turn.action is None or one.index == before.index:
                continue  # a turn that the environment did not see
            result = await self._sessions.step(
                session.session_id, before.index, one.turn.action, timeout_s=self._timeout_s
            )
            self.num_replayed += 1
            _require_same(one, result)
        self._gone.discard(node.session_id)
        node.session_id = session.session_id
        self.arrived(node)


def _require_same(node: Node, came: Session | StepResult) -> None:
    if came.observation + node.beside != node.observation or came.score != node.score:
        raise EnvironmentFailed(
            Problem(
                title="Another state", status=500,
                detail=f"{node.task.env} says that it is deterministic, and came to another state by the actions that "
                f"led to node {node.id} before",
            )
        )  # fmt: skip
