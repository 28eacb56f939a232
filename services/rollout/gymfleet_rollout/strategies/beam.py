"""Beam search over turns: of all that can come next the best few are played on."""

from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.episodes import distinct, side_by_side, tried
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class BeamOptions(StrategyOptions):
    """How broad the search is."""

    width: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Nodes of each depth that are played on. The search is over when so many episodes have ended."""
    candidates: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Replies to each of them. Those that ask for the same action are one."""


class Beam(Strategy[BeamOptions]):
    """The policy replies to the best nodes of a depth; `[rollout.evaluator]` says which of what follows are best.

    The best of the episodes that ended are handed in, as many as were asked for, and nodes that were left where there
    are not as many.
    """

    Options = BeamOptions
    facts = StrategyFacts(evaluates=True, forks=True)

    async def play(self, ctx: PlayContext) -> None:
        """Search one tree for the whole group."""
        beams = [await ctx.open()]
        ended: list[tuple[float, Node]] = []
        try:
            while beams and len(ended) < self.options.width:
                beams = await self._next(ctx, beams, ended)
        except BudgetSpent:
            pass
        best = [leaf for _, leaf in sorted(ended, key=lambda one: -one[0])]
        for leaf in [*best, *beams][: len(ctx.group.wanted)]:
            ctx.export(leaf, selected=True)

    async def _next(self, ctx: PlayContext, beams: list[Node], ended: list[tuple[float, Node]]) -> list[Node]:
        """Return the nodes of the next depth that are played on, and add the others that are over to `ended`."""
        grown = await side_by_side(self._children(ctx, node) for node in beams)
        children = [child for some in grown for child in some]
        if not children:
            raise BudgetSpent("it let no reply be carried out")
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
