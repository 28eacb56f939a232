"""The exported episodes of an attempt, and whether a search selected or rejected each."""

from collections.abc import Iterable
from typing import Literal, TypeAlias

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import MAX_GROUP_SIZE, FinishReason

from gymfleet_rollout.budget import BudgetSpent, NoRoom
from gymfleet_rollout.errors import StrategyError
from gymfleet_rollout.tree import Node

Chosen: TypeAlias = Literal["", "selected", "rejected"]
"""Whether a search selected or rejected an episode; empty if no search chose."""


class HandedIn:
    """Takes leaves as the samples of a group, in turn.

    Args:
        together: whether the samples are played together; otherwise there is one.
    """

    def __init__(self, group: GroupRequest, *, together: bool) -> None:
        self._group = group
        self._together = together
        self.leaves: list[tuple[Node, Chosen]] = []
        self.not_begun: BudgetSpent | None = None
        """Why an exported episode has no turn, and does not count."""
        self._tips: dict[str, Node] = {}
        """The nodes without children, by id; none if rejected episodes are not requested."""
        self._inner: set[str] = set()
        """The ids of the nodes with children."""

    def reached(self, node: Node) -> None:
        """Note a node, if rejected episodes are requested."""
        if not (self._group.rejected and self._together):
            return
        if node.parent_id is not None:
            self._inner.add(node.parent_id)
            self._tips.pop(node.parent_id, None)
        if node.id not in self._inner:
            self._tips.setdefault(node.id, node)

    def add(self, leaf: Node, chosen: Chosen, spent: BudgetSpent | None) -> None:
        """Take the episode that ends at a leaf, unless a spent budget ended it before its first turn."""
        if leaf.exported:
            raise StrategyError(f"node {leaf.id} was exported already")
        if leaf.greedy:
            raise StrategyError(f"node {leaf.id} came of greedy replies, which are no samples of the policy")
        if not self._together and self.leaves:
            raise StrategyError("a strategy that plays each sample by itself exports one episode")
        if len(self.leaves) >= MAX_GROUP_SIZE:
            raise StrategyError(f"a group has at most {MAX_GROUP_SIZE} episodes")
        leaf.exported = True
        if leaf.table is not None:
            leaf.table.leave()
        if leaf.ended is None:
            if spent is not None and not leaf.depth:
                self.not_begun = spent
                return
            leaf.ended = _reason(spent)
        self.leaves.append((leaf, chosen))

    def add_open(self, newest: Iterable[Node], spent: BudgetSpent | None) -> None:
        """Take the open episodes after the budget was spent: of the newest nodes, each episode once."""
        known = self._ids()
        for node in newest:
            if node.greedy or node.id in known or len(self.leaves) >= len(self._group.wanted):
                continue
            if self._together or not self.leaves:
                known.add(node.id)
                self.add(node, "", spent)

    def add_rejected(self, spent: BudgetSpent | None) -> int:
        """Take the episodes that were tried and not exported, and return how many the group has no room for."""
        known = self._ids()
        left = [tip for tip in self._tips.values() if tip.depth and not tip.greedy and tip.id not in known]
        room = MAX_GROUP_SIZE - len(self.leaves)
        for tip in left[:room]:
            self.add(tip, "rejected", spent)
        return max(len(left) - room, 0)

    def _ids(self) -> set[str]:
        return {leaf.id for leaf, _ in self.leaves}


def _reason(spent: BudgetSpent | None) -> FinishReason:
    if spent is None:
        return FinishReason.STOPPED
    return FinishReason.CONTEXT_LENGTH if isinstance(spent, NoRoom) else FinishReason.BUDGET
