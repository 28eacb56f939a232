"""Episodes whose states are valued by what comes of them: continuations from forks."""

from statistics import fmean
from typing import Annotated, Final, Self

from gymfleet_contracts.numbers import NUMBER
from pydantic import ConfigDict, Field, StrictBool, model_validator

from gymfleet_rollout.episodes import side_by_side, to_the_end
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions

_NO_EPISODES: Final = "train_continuations needs the value of the first state: give skip = 0"


class ForksOptions(StrategyOptions):
    """Which states are valued, and by how much play."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {"train_continuations": {"const": True}, "skip": {"minimum": 1}},
                "required": ["train_continuations", "skip"],
            },
            "$comment": _NO_EPISODES,
        }
    )

    continuations: Annotated[int, Field(ge=1, le=64), NUMBER] = 4
    """Forks of a state that the policy plays to their ends; their mean reward is what the state is worth. Their steps
    and replies count against the budget."""
    every: Annotated[int, Field(ge=1), NUMBER] = 1
    """Turns from one state that is valued to the next."""
    skip: Annotated[int, Field(ge=0), NUMBER] = 0
    """Turns before the first state that is valued. The first state of all counts for the whole group: without it the
    other episodes of the group stand for its continuations."""
    max_forks: Annotated[int, Field(ge=1), NUMBER] | None = None
    """States of an episode that are valued at the most; without it all."""
    train_continuations: StrictBool = False
    """Hand in the continuations too: the group then has more episodes than were asked for."""

    @model_validator(mode="after")
    def continuations_are_no_others(self) -> Self:
        """A first state without a value is compared with whole episodes, and continuations are none."""
        if self.train_continuations and self.skip:
            raise ValueError(_NO_EPISODES)
        return self


class Forks(Strategy[ForksOptions]):
    """The policy plays as many episodes as were asked for, and values their states by continuations from forks."""

    Options = ForksOptions
    facts = StrategyFacts(evaluates=True, forks=True, values=True)

    def __init__(self, options: ForksOptions) -> None:
        super().__init__(options)
        self._continued: list[Node] = []

    async def play(self, ctx: PlayContext) -> None:
        """Play the group: all episodes begin in one state, which is valued once."""
        root = await ctx.open()
        await self._value_if_due(ctx, root)
        others = len(ctx.group.wanted) - 1
        roots = [root, *(await ctx.fork(root, others) if others else ())]
        leaves = await side_by_side(self._episode(ctx, one) for one in roots)
        for leaf in (*leaves, *self._continued):
            ctx.export(leaf)

    async def _episode(self, ctx: PlayContext, node: Node) -> Node:
        """Return the leaf of an episode, or how far the budget let it come."""
        try:
            while not node.over:
                if node.depth:
                    await self._value_if_due(ctx, node)
                (reply,) = await ctx.propose(node)
                node = await ctx.act(node, reply)
        except BudgetSpent:
            pass
        return node

    async def _value_if_due(self, ctx: PlayContext, node: Node) -> None:
        """Value a state by continuations. Where the budget lets only some end, it has no value: they are the short."""
        number, between = divmod(node.depth - self.options.skip, self.options.every)
        if number < 0 or between or (self.options.max_forks is not None and number >= self.options.max_forks):
            return
        try:
            forks = await ctx.fork(node, self.options.continuations)
            leaves = await side_by_side(self._continuation(ctx, fork) for fork in forks)
            if not all(leaf.over for leaf in leaves):
                return
            ctx.value(node, fmean(await ctx.evaluate(leaves)), len(leaves))
        except BudgetSpent:
            return
        if self.options.train_continuations:
            self._continued += leaves

    async def _continuation(self, ctx: PlayContext, node: Node) -> Node:
        """Return the leaf of a continuation, or how far the budget let it come. Its session makes room for others."""
        leaf = await to_the_end(ctx, node)
        await ctx.release(leaf)
        return leaf
