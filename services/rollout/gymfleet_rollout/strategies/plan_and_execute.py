"""A plan first, then the episode (Wang et al., arXiv:2305.04091)."""

from typing import Annotated, Final

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.strategy import Node, PlayContext, Strategy, StrategyFacts, StrategyOptions

PLANNER: Final = "planner"
_PLAN: Final = "Before you act, write down in a few lines how you will go about it."
_AGAIN: Final = "Before you go on, write down in a few lines what is done and how you will go about the rest."


class PlanOptions(StrategyOptions):
    """When the policy plans."""

    every: Annotated[int, Field(ge=1), NUMBER] | None = None
    """Number of actions after which a new plan is written; without it there is only one plan, at the beginning."""


class PlanAndExecute(Strategy[PlanOptions]):
    """The policy writes a plan in the role `planner`, as a turn of the episode, and plays with the plan in its context.

    Nothing is chosen: the episodes are samples of the policy. A stage's `roles` determine whether it learns to plan.
    """

    Options = PlanOptions
    facts = StrategyFacts(by_sample=True, roles=(PLANNER,))

    async def play(self, ctx: PlayContext) -> None:
        """Play one episode."""
        node = await self._planned(ctx, await ctx.open(), _PLAN)
        actions = 0
        while not node.over:
            if self.options.every is not None and actions == self.options.every:
                node, actions = await self._planned(ctx, node, _AGAIN), 0
                continue
            (reply,) = await ctx.propose(node)
            node, actions = await ctx.act(node, reply), actions + 1
        ctx.export(node)

    async def _planned(self, ctx: PlayContext, node: Node, hint: str) -> Node:
        (plan,) = await ctx.propose(node, hint=hint, role=PLANNER)
        return ctx.answer(node, plan, node.observation)
