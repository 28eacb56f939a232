"""Of several episodes one of those that end with the answer of most (Wang et al., arXiv:2203.11171)."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.episodes import side_by_side
from gymfleet_rollout.strategies.best_of_n import candidates
from gymfleet_rollout.strategy import Node, PlayContext, Strategy, StrategyOptions


class SelfConsistencyOptions(StrategyOptions):
    """How many vote."""

    candidates: Annotated[int, Field(ge=2, le=1024), NUMBER] = 8
    """Episodes of which one is handed in. With a budget they are played one after another, and it may end sooner."""


class SelfConsistency(Strategy[SelfConsistencyOptions]):
    """The policy plays several episodes for each that was asked for, whose last actions vote.

    For tasks that end with an answer. Upper and lower case and blanks make no other answer. Episodes that were cut
    short, or end with a reply that asks for no action, have no vote. Nobody is told how well an episode ended.
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
    """Return the first leaf with the answer that most give; of equally many the one that was given first."""
    answers = {leaf: answer for leaf in leaves if (answer := _answer(leaf)) is not None}
    if not answers:
        return leaves[0]
    ((most, _),) = Counter(answers.values()).most_common(1)
    return next(leaf for leaf, answer in answers.items() if answer == most)


def _answer(leaf: Node) -> str | None:
    if not leaf.over or leaf.turn is None or leaf.turn.action is None:
        return None
    return " ".join(leaf.turn.action.lower().split())
