"""A search over turns in which the policy itself judges the nodes (Yao et al., arXiv:2305.10601)."""

from typing import Annotated, Final, Literal

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.asking import VALUER, comparisons, marks, path, votes, way
from gymfleet_rollout.episodes import distinct, over_first, tried
from gymfleet_rollout.strategy import (
    BudgetSpent,
    Node,
    NoRoom,
    PlayContext,
    Reply,
    Strategy,
    StrategyFacts,
    StrategyOptions,
)

PROPOSER: Final = "proposer"
_SHOWN: Final = 300


class TreeOptions(StrategyOptions):
    """How the tree grows, and how the policy values nodes."""

    search: Literal["bfs", "dfs"] = "bfs"
    """`bfs`: continue from the best `width` nodes of each depth. `dfs`: follow the best child first, and go back from
    a bad end."""
    children: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Children of a node."""
    generate: Literal["sampled", "proposed"] = "sampled"
    """`sampled`: sample replies independently. `proposed`: the policy lists different next steps, and takes each."""
    value: Literal["marks", "votes", "comparisons"] = "marks"
    """`marks`: the policy gives each node a number from 0 to 10. `votes`: it names the best node. `comparisons`: it
    names the better one of each pair. The last two are over a whole depth with `bfs`, over a node's children with
    `dfs`."""
    samples: Annotated[int, Field(ge=1, le=64), NUMBER] = 3
    """Answers to each of these questions."""
    width: Annotated[int, Field(ge=1, le=64), NUMBER] = 2
    """Nodes of each depth that `bfs` continues from; it is over once this many episodes have ended."""
    prune: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.15
    """`dfs` does not continue from nodes whose value is not above this."""
    tries: Annotated[int, Field(ge=1, le=1024), NUMBER] = 10
    """Episodes that `dfs` plays to the end; the best is exported."""


class TreeOfThoughts(Strategy[TreeOptions]):
    """The policy judges which next steps are promising, and takes those; no reward is used.

    It values actions that were carried out in forks, together with their results. An answer that cannot be read is
    worth nothing, and is counted in the record of the search.
    """

    Options = TreeOptions
    facts = StrategyFacts(forks=True, roles=(VALUER, PROPOSER))

    def __init__(self, options: TreeOptions) -> None:
        super().__init__(options)
        self._unvalued: list[Node] = []
        """Nodes that were reached when the budget no longer allowed their values."""

    async def play(self, ctx: PlayContext) -> None:
        """Search one tree for the whole group."""
        root = await ctx.open()
        search = self._broad if self.options.search == "bfs" else self._deep
        for leaf in (await search(ctx, root))[: len(ctx.group.wanted)]:
            ctx.export(leaf, selected=True)

    async def _broad(self, ctx: PlayContext, root: Node) -> list[Node]:
        # Votes and comparisons are over nodes of all branches, so the policy is asked at the beginning.
        stem = None if self.options.value == "marks" else (await ctx.fork(root))[0]
        beams, ended, valued = [root], list[tuple[float, Node]](), list[tuple[float, Node]]()
        try:
            while beams and len(ended) < self.options.width:
                valued = []
                if stem is None:
                    for node in beams:
                        valued += await self._children(ctx, node)
                else:
                    grown = [child for node in beams for child in await self._grown(ctx, node)]
                    valued = await self._valued(ctx, stem, grown, [path(child) for child in grown])
                if not valued:
                    break  # the budget let nothing be carried out
                ranked = sorted(valued, key=lambda one: -one[0])
                ended += [one for one in ranked if one[1].over]
                left = [child for _, child in ranked if not child.over]
                beams = left[: self.options.width]
                for child in left[self.options.width :]:
                    await ctx.release(child)
        except BudgetSpent:
            ended += [one for one in valued if one[1].over]
        return [leaf for _, leaf in sorted(ended, key=lambda one: -one[0])] + self._unvalued + beams

    async def _deep(self, ctx: PlayContext, root: Node) -> list[Node]:
        ended: list[tuple[float, Node]] = []
        newest = root
        stack = [root]
        try:
            while stack and len(ended) < self.options.tries:
                node = stack.pop()
                # The last node of the stack comes next.
                try:
                    children = await self._children(ctx, node)
                except NoRoom:  # it is shallower elsewhere
                    continue
                for value, child in sorted(children, key=lambda one: one[0]):
                    newest = child
                    if child.over:
                        ended.append((value, child))
                    elif value > self.options.prune:
                        stack.append(child)
                        continue
                    await ctx.release(child)
        except BudgetSpent:
            pass
        return [leaf for _, leaf in sorted(ended, key=lambda one: -one[0])] or self._unvalued or [newest]

    async def _children(self, ctx: PlayContext, node: Node) -> list[tuple[float, Node]]:
        """Return the children of a node with their values; none if the budget lets no reply be carried out."""
        (stem,) = await ctx.fork(node)  # at which the policy is asked about what follows
        children = await self._grown(ctx, node)
        valued = await self._valued(ctx, stem, children, [way(child) for child in children])
        await ctx.release(stem)
        return valued

    async def _grown(self, ctx: PlayContext, node: Node) -> list[Node]:
        return await tried(ctx, node, await self._replies(ctx, node))

    async def _valued(
        self, ctx: PlayContext, stem: Node, children: list[Node], ways: list[str]
    ) -> list[tuple[float, Node]]:
        if not children:
            return []
        try:
            values = await self._asked(ctx, stem, ways)
        except NoRoom:
            raise
        except BudgetSpent:
            self._unvalued = over_first(children)
            raise
        for value, child in zip(values, children, strict=True):
            ctx.note(child, value=value)
        return list(zip(values, children, strict=True))

    async def _asked(self, ctx: PlayContext, stem: Node, ways: list[str]) -> list[float]:
        if self.options.value == "votes":
            return await votes(ctx, stem, ways, self.options.samples)
        if self.options.value == "comparisons":
            return await comparisons(ctx, stem, ways, self.options.samples)
        return [mark or 0.0 for mark in await marks(ctx, stem, ways, self.options.samples)]

    async def _replies(self, ctx: PlayContext, node: Node) -> list[Reply]:
        count = self.options.children
        if self.options.generate == "sampled":
            return distinct(await ctx.propose(node, count))
        hint = f"List up to {count} different things that you could do now, one on each line, and nothing else."
        (listed,) = await ctx.propose(node, hint=hint, role=PROPOSER)
        lines = list(dict.fromkeys(line.strip(" -*") for line in listed.text.splitlines() if line.strip(" -*")))[:count]
        replies = [(await ctx.propose(node, hint=f"Do this now: {line[:_SHOWN]}"))[0] for line in lines]
        return distinct(replies) or await ctx.propose(node)
