"""Beam search over turns: the search continues from the best few of all next nodes."""

from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.episodes import distinct, over_first, side_by_side, tried
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class BeamOptions(StrategyOptions):
    """The breadth of the search."""

    width: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Nodes of each depth that the search continues from. It is over once this many episodes have ended."""
    candidates: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Replies to each of these nodes. Replies that ask for the same action count as one."""


class Beam(Strategy[BeamOptions]):
    """The policy replies to the best nodes of each depth; `[rollout.evaluator]` decides which nodes are best.

    The best finished episodes are exported, as many as were requested; if there are fewer, nodes that are still open
    make up the number.
    """

    Options = BeamOptions
    facts = StrategyFacts(evaluates=True, forks=True)

    async def play(self, ctx: PlayContext) -> None:
        """Search one tree for the whole group."""
        beams = [await ctx.open()]
        ended: list[tuple[float, Node]] = []
        try:
            while beams and len(ended) < self.options.width:
                beams = await self._grown(ctx, beams)
                beams = await self._best(ctx, beams, ended)
        except BudgetSpent:
            pass
        best = [leaf for _, leaf in sorted(ended, key=lambda one: -one[0])]
        for leaf in [*best, *beams][: len(ctx.group.wanted)]:
            ctx.export(leaf, selected=True)

    async def _grown(self, ctx: PlayContext, beams: list[Node]) -> list[Node]:
        """Return the nodes of the next depth, first those that are over: the budget may not allow their values."""
        grown = await side_by_side(self._children(ctx, node) for node in beams)
        children = [child for some in grown for child in some]
        if not children:
            raise BudgetSpent("it let no reply be carried out")
        return over_first(children)

    async def _best(self, ctx: PlayContext, children: list[Node], ended: list[tuple[float, Node]]) -> list[Node]:
        """Return the nodes of a depth to continue from, and add those that are over to `ended`."""
        ranked = sorted(zip(await ctx.evaluate(children), children, strict=True), key=lambda one: -one[0])
        ended += [(value, child) for value, child in ranked if child.over]
        still_open = [child for _, child in ranked if not child.over]
        await side_by_side(ctx.release(child) for child in still_open[self.options.width :])
        return still_open[: self.options.width]

    async def _children(self, ctx: PlayContext, node: Node) -> list[Node]:
        try:
            return await tried(ctx, node, distinct(await ctx.propose(node, self.options.candidates)))
        except BudgetSpent:
            return []
