"""Games between copies of the policy."""

import asyncio
import math

from gymfleet_rollout.strategy import Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class SelfPlay(Strategy[StrategyOptions]):
    """The policy plays every seat of a game against itself; each seat gives an episode with its own context."""

    facts = StrategyFacts(games=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play as many games as the wanted samples need, all at once."""
        first = await ctx.open()
        num_games = math.ceil(len(ctx.group.wanted) / len(first.seats))
        tables = [first, *await asyncio.gather(*(ctx.open() for _ in range(num_games - 1)))]
        async with asyncio.TaskGroup() as players:
            playing = [players.create_task(_episode(ctx, table, seat)) for table in tables for seat in table.seats]
        for player in playing:
            if (leaf := player.result()).depth:  # else the game was left before the player's first turn
                ctx.export(leaf)


async def _episode(ctx: PlayContext, table: Node, seat: str) -> Node:
    """Play one seat to the end of the game and return the last node."""
    node = await ctx.sit(table, seat)
    while not node.over:
        (reply,) = await ctx.propose(node)
        node = await ctx.act(node, reply)
    return node
