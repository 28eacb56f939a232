"""Trees of samples of the policy: episodes that share their turns up to where they branch."""

import random
from collections.abc import Collection
from itertools import chain
from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from gymfleet_contracts.trajectory import MAX_GROUP_SIZE
from pydantic import Field

from gymfleet_rollout.episodes import side_by_side
from gymfleet_rollout.errors import StrategyError
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class TreeSamplingOptions(StrategyOptions):
    """Where episodes branch, and into how many."""

    branches: Annotated[int, Field(ge=2, le=64), NUMBER] = 2
    """Number of branches at a state where an episode branches."""
    at: Annotated[tuple[Annotated[int, Field(ge=0), NUMBER], ...], Field(min_length=1, max_length=16)] | None = None
    """Turns after which all open episodes of a tree branch; without it, the turns are drawn for each tree."""
    drawn: Annotated[int, Field(ge=1, le=16), NUMBER] = 1
    """Number of turns that are drawn."""
    within: Annotated[int, Field(ge=1), NUMBER] = 4
    """Number of first turns from which they are drawn, all equally likely."""


class TreeSampling(Strategy[TreeSamplingOptions]):
    """The policy plays one tree for each episode requested; every leaf is exported, and nothing is chosen.

    The turns at which a tree branches do not depend on what happens in it, so each path is a sample of the policy. With
    d such turns, a group has up to `branches`^d times as many episodes as requested.
    """

    Options = TreeSamplingOptions
    facts = StrategyFacts(forks=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play the group's trees side by side."""
        num_trees, options = len(ctx.group.wanted), self.options
        depths = len(set(options.at)) if options.at is not None else min(options.drawn, options.within)
        if (most := num_trees * options.branches**depths) > MAX_GROUP_SIZE:
            raise StrategyError(
                f"{num_trees} trees that branch {depths} times into {options.branches} have {most} leaves, above "
                f"{MAX_GROUP_SIZE}: branch less, or ask for fewer"
            )
        trees = await side_by_side(self._tree(ctx, number) for number in range(num_trees))
        for leaf in chain(*trees):
            ctx.export(leaf)

    async def _tree(self, ctx: PlayContext, number: int) -> list[Node]:
        depths = self.options.at
        if depths is None:
            rng = random.Random(f"{ctx.group.group_id}/{number}")
            depths = tuple(rng.sample(range(self.options.within), min(self.options.drawn, self.options.within)))
        leaves = await self._grown(ctx, await ctx.open(), frozenset(depths))
        # If the budget ends where several branches begin, they are one episode.
        return [*{leaf.id: leaf for leaf in leaves}.values()]

    async def _grown(self, ctx: PlayContext, node: Node, depths: Collection[int]) -> list[Node]:
        """Return the leaves below a node, or the last nodes that the budget allows."""
        try:
            while not node.over and node.depth not in depths:
                (reply,) = await ctx.propose(node)
                node = await ctx.act(node, reply)
            if not node.over:
                forks = [node, *(await ctx.fork(node, self.options.branches - 1))]
                later = frozenset(depth for depth in depths if depth > node.depth)
                return [*chain(*await side_by_side(self._grown(ctx, fork, later) for fork in forks))]
        except BudgetSpent:
            pass
        await ctx.release(node)  # it makes room for others
        return [node]
