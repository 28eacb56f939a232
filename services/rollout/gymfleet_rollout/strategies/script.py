"""Moves known in advance."""

from dataclasses import replace
from typing import Annotated

from gymfleet_contracts.rollout import MAX_MOVES, Move
from pydantic import Field

from gymfleet_rollout.strategy import PlayContext, Strategy, StrategyFacts, StrategyOptions


class ScriptOptions(StrategyOptions):
    """The moves to play."""

    moves: Annotated[tuple[Move, ...], Field(max_length=MAX_MOVES)] = ()
    """The moves in order, each with `thought`, `action`, and a `role` if it is not the agent's.
    The episode ends with the last move, if not before."""


class Script(Strategy[ScriptOptions]):
    """Play the moves of the options in order, written as the policy would have to write them, for `augment`."""

    Options = ScriptOptions
    facts = StrategyFacts(by_sample=True, expert=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play one episode, as far as the moves go."""
        node = await ctx.open()
        for move in self.options.moves:
            reply = ctx.write(node, move.thought, move.action)
            if reply is None:
                break
            node = await ctx.act(node, replace(reply, role=move.role))
        ctx.export(node)
