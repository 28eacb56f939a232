"""Independent episodes, and one of the likeliest replies that serves as their baseline."""

import asyncio

from gymfleet_rollout.episodes import to_the_end
from gymfleet_rollout.strategy import Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class GreedyBaseline(Strategy[StrategyOptions]):
    """The policy plays as many episodes as requested; the reward of a greedy one is the value of their first state.

    The greedy episode counts against the budget, and is not exported: its replies are not samples of the policy.
    """

    facts = StrategyFacts(evaluates=True, values=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play the group, each episode in its own session."""
        async with asyncio.TaskGroup() as tasks:
            greedy = tasks.create_task(_episode(ctx, greedy=True))
            sampled = [tasks.create_task(_episode(ctx)) for _ in ctx.group.wanted]
        _, end = greedy.result()
        if end.over:  # what the budget cut short would be too low a baseline
            (gained,) = await ctx.evaluate([end])
            for episode in sampled:
                ctx.value(episode.result()[0], gained, 1)
        for episode in sampled:
            ctx.export(episode.result()[1])


async def _episode(ctx: PlayContext, *, greedy: bool = False) -> tuple[Node, Node]:
    """Return the root of an episode, and its leaf or the last node that the budget allowed."""
    root = await ctx.open()
    return root, await to_the_end(ctx, root, greedy=greedy)
