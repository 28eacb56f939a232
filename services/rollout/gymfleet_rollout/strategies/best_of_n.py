"""The best of several episodes is exported."""

from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.episodes import best_first, side_by_side, to_the_end
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class BestOfNOptions(StrategyOptions):
    """The number of episodes to compare."""

    candidates: Annotated[int, Field(ge=2, le=1024), NUMBER] = 8
    """Episodes of which one is exported. With a budget they are played one after another, and there may be fewer."""


class BestOfN(Strategy[BestOfNOptions]):
    """The policy plays several episodes for each one requested; `[rollout.evaluator]` decides which is best.

    Depending on the evaluator's components, a reward model, a judge or the environment decides.
    """

    Options = BestOfNOptions
    facts = StrategyFacts(evaluates=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play the group."""
        if ctx.group.budget.limits_anything:
            # Played all at once, they would all be cut short; one by one, at most the last one is.
            handed_in = [await self._best(ctx) for _ in ctx.group.wanted]
        else:
            handed_in = await side_by_side(self._best(ctx) for _ in ctx.group.wanted)
        for leaf in handed_in:
            if leaf is not None:
                ctx.export(leaf, selected=True)

    async def _best(self, ctx: PlayContext) -> Node | None:
        leaves = await candidates(ctx, self.options.candidates)
        if not leaves:
            return None
        try:
            return (await best_first(ctx, leaves))[0]
        except BudgetSpent:
            return leaves[0]


async def candidates(ctx: PlayContext, count: int) -> list[Node]:
    """Return the leaves of `count` episodes; fewer if the budget runs out."""
    if not ctx.group.budget.limits_anything:
        return await side_by_side(_episode(ctx) for _ in range(count))
    leaves: list[Node] = []
    while len(leaves) < count and (not leaves or leaves[-1].over):
        try:
            leaves.append(await _episode(ctx))
        except BudgetSpent:
            break
    return leaves


async def _episode(ctx: PlayContext) -> Node:
    leaf = await to_the_end(ctx, await ctx.open())
    await ctx.release(leaf)  # it makes room for others
    return leaf
