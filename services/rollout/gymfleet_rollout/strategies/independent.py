"""Independent episodes."""

from gymfleet_rollout.strategy import PlayContext, Strategy, StrategyFacts, StrategyOptions


class Independent(Strategy[StrategyOptions]):
    """The policy plays every episode independently, from beginning to end."""

    facts = StrategyFacts(by_sample=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play one episode."""
        node = await ctx.open()
        while not node.over:
            (reply,) = await ctx.propose(node)
            node = await ctx.act(node, reply)
        ctx.export(node)
