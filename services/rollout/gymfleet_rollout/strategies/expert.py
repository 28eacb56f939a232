"""Demonstrations."""

from gymfleet_rollout.strategy import PlayContext, Strategy, StrategyFacts, StrategyOptions


class Expert(Strategy[StrategyOptions]):
    """The environment's expert plays every episode; its moves are written as the policy would have to write them."""

    facts = StrategyFacts(by_sample=True, expert=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play one episode, as far as the expert knows how."""
        node = await ctx.open()
        while (reply := await ctx.demonstrate(node)) is not None:
            node = await ctx.act(node, reply)
        ctx.export(node)
