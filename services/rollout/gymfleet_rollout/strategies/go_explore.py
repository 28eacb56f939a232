"""Go-Explore: first return, then explore (Ecoffet et al., arXiv:1901.10995 and Nature 590, 2021)."""

import math
import random
from dataclasses import dataclass
from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.errors import StrategyError
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class GoExploreOptions(StrategyOptions):
    """How long the strategy explores."""

    explorations: Annotated[int, Field(ge=1, le=100_000), NUMBER] = 64
    """Number of times to return to a state and explore from there, for each episode requested."""
    actions: Annotated[int, Field(ge=1, le=1_000), NUMBER] = 4
    """Maximum number of actions in an exploration."""
    enough: Annotated[float, NUMBER] | None = 1.0
    """The search is over once as many episodes as requested have at least this value; without it, once all
    explorations are made."""


@dataclass(slots=True, eq=False)
class _Cell:
    """A state, with the node at the end of the shortest known path to it."""

    node: Node
    seen: int = 0
    """How often the state was returned to or reached."""


class GoExplore(Strategy[GoExploreOptions]):
    """Go back to rarely seen states and act at random from there; the best episodes are exported.

    The policy is not asked: actions are drawn from those that the environment lists, and the replies are written in the
    group's format, without a thought, so that they can be imitated. The environment's keys identify states, or else
    their observations. A state seen n times is chosen with a weight of 1 / sqrt(n + 1). Of two paths to a state the
    shorter is kept and continued, so that exported episodes have no detours that come back to where they began.
    """

    Options = GoExploreOptions
    facts = StrategyFacts(expert=True, evaluates=True, forks=True, state_keys=True, actions=True)

    def __init__(self, options: GoExploreOptions) -> None:
        super().__init__(options)
        self._cells: dict[str, _Cell] = {}
        """Cells by key. Their nodes are forked and never played on."""
        self._ended: dict[Node, float] = {}
        self._newest: Node | None = None
        """The newest node that an action led to."""

    async def play(self, ctx: PlayContext) -> None:
        """Explore for the whole group."""
        root = await ctx.open()
        if not (possible := await ctx.admissible(root)):
            lacks = "does not know all actions that are" if possible is None else "lists no action that is"
            raise StrategyError(
                f"{root.task.env} {lacks} possible at the beginning, and go_explore draws from them: give another "
                "strategy"
            )
        self._cells[_key(root)] = _Cell(root)
        seed = ctx.group.run_id if ctx.group.sampling.seed is None else ctx.group.sampling.seed
        draw = random.Random(f"{seed}/{ctx.group.group_id}")
        wanted = len(ctx.group.wanted)
        try:
            for _ in range(self.options.explorations * wanted):
                await self._explored(ctx, self._returned_to(draw), draw)
                if self._num_good() >= wanted:
                    break
            if self._newest is None:
                raise StrategyError(
                    "go_explore carried out no action: none of its replies to the beginning fits "
                    "limits.max_response_tokens and the context"
                )
        except BudgetSpent:
            pass
        best = sorted(self._ended, key=lambda leaf: (-self._ended[leaf], leaf.depth))[:wanted]
        for leaf in best or [self._newest or root]:
            ctx.export(leaf, selected=True)

    def _num_good(self) -> int:
        enough = self.options.enough
        return 0 if enough is None else sum(value >= enough for value in self._ended.values())

    def _returned_to(self, draw: random.Random) -> _Cell:
        cells = [*self._cells.values()]
        (cell,) = draw.choices(cells, [1 / math.sqrt(cell.seen + 1) for cell in cells])
        cell.seen += 1
        return cell

    async def _explored(self, ctx: PlayContext, cell: _Cell, draw: random.Random) -> None:
        """Act at random from a state."""
        ctx.note(cell.node, visits=cell.seen)
        node = cell.node
        for _ in range(self.options.actions):
            (fork,) = await ctx.fork(node)
            possible = await ctx.admissible(fork)
            if possible is None:
                ctx.count("states whose actions are not listed")
            reply = ctx.write(fork, "", draw.choice(possible)) if possible else None
            if reply is None:
                await ctx.release(fork)
                return
            self._newest = reached = await ctx.act(fork, reply)
            if reached.over:
                (self._ended[reached],) = await ctx.evaluate([reached])
                await ctx.release(reached)
                return
            node = await self._shortest(ctx, reached)
            if node.depth:
                self._newest = node

    async def _shortest(self, ctx: PlayContext, node: Node) -> Node:
        """Return the node of the same state with the shortest path, and keep it."""
        known = self._cells.setdefault(_key(node), _Cell(node))
        known.seen += 1
        if known.node is not node:
            longer = node
            if node.depth < known.node.depth:
                known.node, longer = node, known.node
            await ctx.release(longer)
        return known.node


def _key(node: Node) -> str:
    return node.observation if node.state_key is None else node.state_key
