"""Sessions of nodes that wait to be played on: a few are kept open, others are made again when they are needed."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

from gymfleet_client.errors import EnvironmentFailed
from gymfleet_contracts.problems import Problem
from gymfleet_contracts.rollout import EpisodeLimits
from gymfleet_contracts.session import EnvironmentSpec, ForkSupport, Session, StepResult

from gymfleet_rollout.sessions import Sessions
from gymfleet_rollout.tree import Node

MAX_WAITING: Final = 64
"""Sessions of a group's nodes that nobody is playing on just now, and which stay open all the same."""


class Waiting:
    """The nodes of a group that can still be played on, those that nobody came back to for longest first.

    Where an environment comes to the same state by the same actions, the sessions of all but the last `MAX_WAITING`
    may be closed: `again` plays the actions of a node in a fork of the nearest node above it that has a session, or in
    a new one. A tree is then as large as its budget allows, and takes no more of the environment than these.
    """

    def __init__(self, sessions: Sessions, spec: EnvironmentSpec, limits: EpisodeLimits) -> None:
        can = spec.capabilities
        self._replays = can.deterministic and can.stable_observations and can.fork is not ForkSupport.NONE
        self._sessions = sessions
        self._timeout_s = limits.step_timeout_s
        self._nodes: dict[str, Node] = {}
        """By session."""
        self._in_use: Counter[str] = Counter()

    def add(self, node: Node) -> None:
        """Note a node that its session has come to, or that somebody came back to."""
        self._nodes.pop(node.session_id, None)
        if self._replays and not node.seats:
            self._nodes[node.session_id] = node

    def drop(self, node: Node) -> None:
        """Forget a node that is played on."""
        self._nodes.pop(node.session_id, None)

    def use(self, node: Node) -> None:
        """Keep the session of a node until `used` was called as often."""
        self._in_use[node.session_id] += 1

    def used(self, session_id: str) -> None:
        """See `use`."""
        self._in_use[session_id] -= 1

    def surplus(self) -> list[Node]:
        """Return the nodes whose sessions are to be closed, and forget them."""
        idle = [node for node in self._nodes.values() if not self._in_use[node.session_id]]
        closed = idle[: max(0, len(self._nodes) - MAX_WAITING)]
        for node in closed:
            self.drop(node)
        return closed

    async def again(
        self, node: Node, opened: Callable[[], Awaitable[Session]], forked: Callable[[Node], Awaitable[Session]]
    ) -> tuple[str, int]:
        """Return a session in the state of a node, whose own was closed, and the steps that were taken once more.

        Raises EnvironmentFailed where the environment does not come to it again.
        """
        standing = {one.id: one for one in self._nodes.values()}
        path: list[Node] = []
        above: Node | None = node
        while above is not None and above.id not in standing:
            path.append(above)
            above = above.parent
        if above is not None:
            session = await forked(standing[above.id])
        else:
            session = await opened()
            self._compare(path.pop(), session)
        num_steps = 0
        for one in reversed(path):
            if one.turn is None or one.turn.action is None or one.parent is None or one.index == one.parent.index:
                continue  # a turn that the environment did not see
            result = await self._sessions.step(
                session.session_id, one.parent.index, one.turn.action, timeout_s=self._timeout_s
            )
            num_steps += 1
            self._compare(one, result)
        return session.session_id, num_steps

    @staticmethod
    def _compare(node: Node, came: Session | StepResult) -> None:
        if came.observation + node.beside != node.observation or came.score != node.score:
            raise EnvironmentFailed(
                Problem(
                    title="Another state", status=500,
                    detail=f"{node.task.env} says that it is deterministic, and came to another state by the actions "
                    f"that led to node {node.id} before",
                )
            )  # fmt: skip
