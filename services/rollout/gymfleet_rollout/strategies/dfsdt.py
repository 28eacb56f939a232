"""Depth-first search in which each new try sees a list of the earlier ones (Qin et al., arXiv:2307.16789)."""

from dataclasses import dataclass, field
from typing import Annotated, Final

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.strategy import (
    BudgetSpent,
    Node,
    NoRoom,
    PlayContext,
    Strategy,
    StrategyFacts,
    StrategyOptions,
)

_SHOWN: Final = 300
"""Characters shown of the observation that a try led to."""
_GIVEN_UP: Final = "You gave up."
"""The answer to a reply that gives up: no prompt has it."""


class DfsdtOptions(StrategyOptions):
    """How far the search goes, and how far it goes back."""

    width: Annotated[int, Field(ge=1, le=64), NUMBER] = 2
    """Replies that are tried at a node."""
    back: Annotated[int, Field(ge=1, le=64), NUMBER] = 1
    """Turns that the search goes back, at least, after an episode that ended badly."""
    enough: Annotated[float, NUMBER] = 1.0
    """An episode to which `[rollout.evaluator]` gives at least this value is good enough: no other is tried."""
    gives_up: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """An action with which the policy gives up a branch, such as `give up`. It is not carried out."""


@dataclass(slots=True)
class _Open:
    """A node on the current path."""

    node: Node
    tries: list[str] = field(default_factory=list)
    """The replies that were tried here, each with its result."""


class Dfsdt(Strategy[DfsdtOptions]):
    """The policy plays to the end; if the end is bad, it goes back and does something else.

    Before it replies to a node again, it sees a list of what was done there and what came of it, so that its reply
    differs; a node whose context has no room for the list is left. The first episode that is good enough is exported,
    or else the best. There is one search for each episode requested.
    """

    Options = DfsdtOptions
    facts = StrategyFacts(evaluates=True, forks=True)

    async def play(self, ctx: PlayContext) -> None:
        """Search for each sample separately, one after another, because they share a budget."""
        for _ in ctx.group.wanted:
            leaf = await self._searched(ctx, await ctx.open())
            ctx.export(leaf, selected=True)

    async def _searched(self, ctx: PlayContext, root: Node) -> Node:
        """Return the first leaf that is good enough, or else the best; the newest node if no episode ended."""
        path = [_Open(root)]
        best: tuple[float, Node] | None = None
        newest = root
        try:
            while path:
                here = path[-1]
                if len(here.tries) == self.options.width:
                    await self._back(ctx, path, 1)
                    continue
                try:
                    child, given_up = await self._tried(ctx, here)
                except NoRoom:
                    await self._back(ctx, path, 1)
                    continue
                newest = child
                if given_up:
                    await self._back(ctx, path, self.options.back)
                    continue
                if not child.over:
                    path.append(_Open(child))
                    continue
                (value,) = await ctx.evaluate([child])
                if best is None or value > best[0]:
                    best = value, child
                if value >= self.options.enough:
                    break
                await ctx.release(child)
                await self._back(ctx, path, self.options.back - 1)
        except BudgetSpent:
            pass
        return newest if best is None else best[1]

    async def _tried(self, ctx: PlayContext, here: _Open) -> tuple[Node, bool]:
        """Return the node that another reply leads to, and whether the reply gives up."""
        last = len(here.tries) + 1 == self.options.width
        node = here.node if last else (await ctx.fork(here.node))[0]
        try:
            (reply,) = await ctx.propose(node, hint=_told(here.tries))
        except NoRoom:
            await ctx.release(node)
            raise
        if self.options.gives_up is not None and reply.action == self.options.gives_up:
            here.tries.append(f"{reply.action}: given up")
            child = ctx.answer(node, reply, _GIVEN_UP)
            await ctx.release(child)
            return child, True
        child = await ctx.act(node, reply)
        came = " ".join(child.observation.split())
        here.tries.append(f"{reply.action or reply.text}: {came[:_SHOWN]}")
        return child, False

    async def _back(self, ctx: PlayContext, path: list[_Open], turns: int) -> None:
        for _ in range(min(turns, len(path))):
            await ctx.release(path.pop().node)


def _told(tries: list[str]) -> str:
    if not tries:
        return ""
    listed = "\n".join(f"- {one}" for one in tries)
    return (
        "You have been here before, and it did not end well. What you tried, and what came next:\n"
        f"{listed}\nDo something else."
    )
