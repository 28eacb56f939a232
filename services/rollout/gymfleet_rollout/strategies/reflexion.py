"""An episode is played again with a lesson from how it ended (Shinn et al., arXiv:2303.11366)."""

from typing import Annotated, Final

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.episodes import side_by_side, to_the_end
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions

REFLECTION: Final = "reflection"
_CUT: Final = " ..."


class ReflexionOptions(StrategyOptions):
    """The number of tries, and what the policy remembers of earlier ones."""

    tries: Annotated[int, Field(ge=2, le=64), NUMBER] = 3
    """Maximum number of episodes, of which the last is exported."""
    enough: Annotated[float, NUMBER] = 1.0
    """An episode to which `[rollout.evaluator]` gives at least this value is good enough: no other is tried."""
    lessons: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Number of the latest lessons that are shown again."""
    max_chars: Annotated[int, Field(ge=100, le=100_000), NUMBER] = 2000
    """Characters of the last episode that are shown; of a longer one, the end."""


class Reflexion(Strategy[ReflexionOptions]):
    """The policy writes a lesson from an episode that ended badly, and plays another with the lesson in its context.

    The lesson is a turn of the next episode, in the role `reflection`; the environment does not see it.
    """

    Options = ReflexionOptions
    facts = StrategyFacts(evaluates=True, roles=(REFLECTION,))

    async def play(self, ctx: PlayContext) -> None:
        """Play the group, the tries of each sample one after another."""
        for leaf in await side_by_side(self._tried(ctx) for _ in ctx.group.wanted):
            ctx.export(leaf, selected=True)

    async def _tried(self, ctx: PlayContext) -> Node:
        """Return the leaf of the last try that the budget allowed to begin."""
        leaf = await to_the_end(ctx, await ctx.open())
        lessons: list[str] = []
        try:
            for _ in range(self.options.tries - 1):
                if not leaf.over or (await ctx.evaluate([leaf]))[0] >= self.options.enough:
                    break
                await ctx.release(leaf)
                root = await ctx.open()
                (reply,) = await ctx.propose(root, hint=self._asked(leaf, lessons), role=REFLECTION)
                lessons.append(reply.text)
                leaf = await to_the_end(ctx, ctx.answer(root, reply, root.observation))
        except BudgetSpent:
            pass
        return leaf

    def _asked(self, leaf: Node, lessons: list[str]) -> str:
        said = "\n".join(f"{turn.observation}\n> {turn.action or turn.text}" for turn in leaf.turns())
        told = f"{said}\n{leaf.observation}"
        if len(told) > self.options.max_chars:
            told = _CUT + told[-self.options.max_chars :]
        earlier = "".join(f"\n- {lesson}" for lesson in lessons[-self.options.lessons :])
        return (
            f"You have tried this before, and it did not end well:\n{told}\n"
            + (f"What you have learned from earlier tries:{earlier}\n" if earlier else "")
            + "Say in a few sentences what went wrong and what you will do instead. You will begin anew after that."
        )
