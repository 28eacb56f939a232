"""Of several episodes, one that ends with the most frequent answer (Wang et al., arXiv:2203.11171)."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.episodes import side_by_side
from gymfleet_rollout.strategies.best_of_n import candidates
from gymfleet_rollout.strategy import Node, PlayContext, Strategy, StrategyOptions


class SelfConsistencyOptions(StrategyOptions):
    """The number of episodes that vote."""

    candidates: Annotated[int, Field(ge=2, le=1024), NUMBER] = 8
    """Episodes of which one is exported. With a budget they are played one after another, and there may be fewer."""


class SelfConsistency(Strategy[SelfConsistencyOptions]):
    """The policy plays several episodes for each one requested; their last actions vote.

    For tasks that end with an answer. Answers that differ only in case or whitespace are the same. Episodes that the
    budget cut short, or that end with a reply without an action, have no vote. The vote does not see how well an
    episode ended.
    """

    Options = SelfConsistencyOptions

    async def play(self, ctx: PlayContext) -> None:
        """Play the group."""
        if ctx.group.budget.limits_anything:
            played = [await candidates(ctx, self.options.candidates) for _ in ctx.group.wanted]
        else:
            played = await side_by_side(candidates(ctx, self.options.candidates) for _ in ctx.group.wanted)
        for leaves in played:
            if leaves:
                ctx.export(elected(leaves), selected=True)


def elected(leaves: Sequence[Node]) -> Node:
    """Return the first leaf with the most frequent answer; of equally frequent ones, with the one given first."""
    answers = {leaf: answer for leaf in leaves if (answer := _answer(leaf)) is not None}
    if not answers:
        return leaves[0]
    ((most, _),) = Counter(answers.values()).most_common(1)
    return next(leaf for leaf, answer in answers.items() if answer == most)


def _answer(leaf: Node) -> str | None:
    if not leaf.over or leaf.turn is None or leaf.turn.action is None:
        return None
    return " ".join(leaf.turn.action.lower().split())
