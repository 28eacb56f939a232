"""The likeliest admissible reply of several."""

from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.strategies.masked import as_listed
from gymfleet_rollout.strategy import PlayContext, Reply, Strategy, StrategyFacts, StrategyOptions


class RankedOptions(StrategyOptions):
    """The number of replies to compare."""

    candidates: Annotated[int, Field(ge=2, le=64), NUMBER] = 4
    """Replies to each observation."""


class Ranked(Strategy[RankedOptions]):
    """The policy replies several times; the likeliest admissible action is carried out.

    An action is as likely as all replies that asked for it together. If none is admissible, or the environment does not
    know all possible actions, all are compared. The chosen reply is not a sample of the policy: stages that imitate
    learn from it, and policy gradients refuse it.
    """

    Options = RankedOptions
    facts = StrategyFacts(by_sample=True, actions=True)

    async def play(self, ctx: PlayContext) -> None:
        """Play one episode."""
        node = await ctx.open()
        while not node.over:
            replies = await ctx.propose(node, self.options.candidates)
            possible = await ctx.admissible(node)
            fit = [reply for reply in replies if possible is None or as_listed(reply.action or "", possible)]
            node = await ctx.act(node, likeliest(fit or replies))
        ctx.export(node, selected=True)


def likeliest(replies: list[Reply]) -> Reply:
    """Return the likeliest reply: one with the most frequent action, and among these the one with likelier tokens."""
    votes: dict[str | None, int] = {}
    for reply in replies:
        votes[reply.action] = votes.get(reply.action, 0) + 1
    return max(replies, key=lambda reply: (votes[reply.action], _mean(reply)))


def _mean(reply: Reply) -> float:
    """Return the mean log-probability of a reply's tokens."""
    return sum(reply.logprobs or ()) / max(len(reply.token_ids), 1)
