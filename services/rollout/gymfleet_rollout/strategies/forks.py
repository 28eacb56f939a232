"""Episodes whose states are valued by continuations from forks."""

from statistics import fmean
from typing import Annotated, Final, Self

from gymfleet_contracts.numbers import NUMBER
from pydantic import ConfigDict, Field, StrictBool, model_validator

from gymfleet_rollout.episodes import side_by_side, to_the_end
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions

_NO_EPISODES: Final = "train_continuations needs the value of the first state: give skip = 0"


class ForksOptions(StrategyOptions):
    """Which states are valued, and by how many continuations."""

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
    """Forks of a state that the policy plays to the end; their mean reward is the value of the state. Their steps
    and replies count against the budget."""
    every: Annotated[int, Field(ge=1), NUMBER] = 1
    """Turns from one valued state to the next."""
    skip: Annotated[int, Field(ge=0), NUMBER] = 0
    """Turns before the first valued state. The initial state has one value for the whole group; if it has none, the
    other episodes of the group stand in for its continuations."""
    max_forks: Annotated[int, Field(ge=1), NUMBER] | None = None
    """Maximum number of valued states in an episode; without it, all states are valued."""
    train_continuations: StrictBool = False
    """Export the continuations too: the group then has more episodes than were requested."""

    @model_validator(mode="after")
    def continuations_are_no_others(self) -> Self:
        """Reject `train_continuations` with `skip`.

        An initial state without a value is compared with whole episodes, and continuations are not whole episodes.
        """
        if self.train_continuations and self.skip:
            raise ValueError(_NO_EPISODES)
        return self


class Forks(Strategy[ForksOptions]):
    """The policy plays as many episodes as requested, and values their states by continuations from forks."""

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
        """Return the leaf of an episode, or the last node that the budget allowed."""
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
        """Value a state by continuations, unless the budget lets only some of them end: those are the short ones."""
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
        """Return the leaf of a continuation, or the last node that the budget allowed, and release its session."""
        leaf = await to_the_end(ctx, node)
        await ctx.release(leaf)
        return leaf
