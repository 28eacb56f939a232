"""Only admissible actions are carried out."""

from typing import Annotated, Literal

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.strategy import Node, PlayContext, Reply, Strategy, StrategyFacts, StrategyOptions


class MaskedOptions(StrategyOptions):
    """The treatment of replies that ask for an impossible action."""

    tries: Annotated[int, Field(ge=1, le=64), NUMBER] = 4
    """Maximum replies to one observation; the last is carried out whatever it asks for. Each counts as a call."""
    rejected: Literal["answered", "discarded"] = "answered"
    """`"answered"`: the policy is told that the action is impossible, and tries again; its reply is a turn of the
    episode that the environment does not see. `"discarded"`: another reply is sampled as if there had been none."""
    also: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=64)] = ()
    """Beginnings of actions that are never rejected: those with free text, which no environment lists (`search[`)."""


class Masked(Strategy[MaskedOptions]):
    """The policy plays independent episodes; actions that the environment does not list are not carried out.

    With `rejected = "answered"` the episode contains all sampled replies. With `"discarded"` it contains only those
    that were kept: they follow the policy's distribution given that they are admissible, while their log-probabilities
    are the policy's own. A policy gradient on them is biased: it ignores how likely the policy is to be admissible at
    all.
    """

    Options = MaskedOptions
    facts = StrategyFacts(by_sample=True, actions=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play one episode."""
        node = await ctx.open()
        tried = 0
        while not node.over:
            (reply,) = await ctx.propose(node)
            tried += 1
            if tried < self.options.tries and (possible := await self._rejects(ctx, node, reply)) is not None:
                if self.options.rejected == "answered":
                    node = ctx.answer(node, reply, f"This is not possible now. Possible actions: {', '.join(possible)}")
                continue
            node, tried = await ctx.act(node, reply), 0
        ctx.export(node)

    async def _rejects(self, ctx: PlayContext, node: Node, reply: Reply) -> list[str] | None:
        """Return the possible actions if the reply's action is not one of them, else None."""
        action = reply.action
        if action is None or action.startswith(self.options.also):
            return None
        possible = await ctx.admissible(node)
        return None if possible is None or as_listed(action, possible) else possible


def as_listed(action: str, possible: list[str]) -> bool:
    """Return whether an action is one of these, regardless of case and whitespace."""
    wanted = " ".join(action.lower().split())
    return any(wanted == " ".join(one.lower().split()) for one in possible)
