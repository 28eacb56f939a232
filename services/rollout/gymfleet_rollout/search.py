"""The record of the nodes of a group that is played together."""

import math
from collections import Counter
from dataclasses import dataclass, field

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.search import MAX_ACTION_CHARS, MAX_COUNTS, MAX_NODES, SearchNode, SearchTree, Spent
from gymfleet_contracts.session import TaskRef
from gymfleet_contracts.trajectory import AGENT

from gymfleet_rollout.budget import Spending
from gymfleet_rollout.errors import StrategyError
from gymfleet_rollout.group_sessions import GroupSessions
from gymfleet_rollout.tree import Node


@dataclass(slots=True)
class _Seen:
    """A node without the path to it, so that tokens and observations go when the strategy drops the node."""

    record: SearchNode
    visits: int | None = None
    samples: list[int] = field(default_factory=list)
    selected: bool = False


class TreeRecorder:
    """Remembers up to `MAX_NODES` nodes, and counts the others."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._left_out: set[str] = set()
        self.values: dict[str, float] = {}
        """The values of all nodes that have one, by node id."""
        self._counts: Counter[str] = Counter()
        self.valued_by: tuple[str, ...] = ()
        self._task: TaskRef | None = None

    def add(self, node: Node) -> None:
        """Remember a node; if it is known, update how it ended."""
        self._task = self._task or node.task
        if (seen := self._seen.get(node.id)) is not None:
            seen.record = seen.record.model_copy(update={"ended": node.ended})
        elif len(self._seen) >= MAX_NODES:
            self._left_out.add(node.id)
        else:
            turn = node.turn
            action = None if turn is None or turn.action is None else turn.action[:MAX_ACTION_CHARS]
            record = SearchNode(
                id=node.id, parent=node.parent_id, depth=node.depth, action=action, score=node.score, ended=node.ended,
                role=AGENT if turn is None else turn.role,
            )  # fmt: skip
            self._seen[node.id] = _Seen(record)

    def note(self, node: Node, value: float | None, visits: int | None) -> None:
        """Remember the strategy's value and visits of a node. Raises StrategyError for an invalid value or count."""
        if value is not None and not math.isfinite(value):
            raise StrategyError(f"the value {value} of node {node.id} is not finite")
        if visits is not None and visits < 0:
            raise StrategyError(f"node {node.id} cannot have {visits} visits")
        if value is not None:
            self.values[node.id] = float(value)
        if (seen := self._seen.get(node.id)) is not None:
            seen.visits = seen.visits if visits is None else visits

    def count(self, what: str, number: int) -> None:
        """Count something. Raises StrategyError for a negative number, and for a 33rd thing."""
        if number < 0:
            raise StrategyError(f"{what!r} cannot be {number}")
        if number and len({*self._counts, what}) > MAX_COUNTS:
            raise StrategyError(f"{what!r}: a record counts at most {MAX_COUNTS} things")
        self._counts[what] += number

    def exported(self, leaf: Node, sample: int, *, selected: bool) -> None:
        """Remember that a leaf was exported as a sample of the group."""
        self.add(leaf)
        if (seen := self._seen.get(leaf.id)) is not None:
            seen.samples.append(sample)
            seen.selected = seen.selected or selected

    def tree(self, group: GroupRequest, attempt: int, spending: Spending, sessions: GroupSessions) -> SearchTree | None:
        """Return the record; None if no node was reached."""
        if self._task is None:
            return None
        nodes = tuple(
            seen.record.model_copy(
                update={
                    "value": self.values.get(node_id), "visits": seen.visits, "samples": tuple(seen.samples),
                    "selected": seen.selected,
                }
            )
            for node_id, seen in self._seen.items()
        )  # fmt: skip
        return SearchTree(
            run_id=group.run_id, group_id=group.group_id, replay=group.replay, attempt=attempt, task=self._task,
            strategy=group.strategy.use, nodes=nodes, num_left_out=len(self._left_out),
            num_forks=sessions.num_forks, num_replayed=sessions.num_replayed, valued_by=self.valued_by,
            counts={what: n for what, n in self._counts.items() if n},
            spent=Spent(
                env_steps=spending.env_steps, model_calls=spending.model_calls, tokens=spending.tokens,
                evaluations=spending.evaluations,
                seconds=round(spending.seconds, 3),
            ),
        )  # fmt: skip
