"""Monte-Carlo tree search over turns (Kocsis and Szepesvári, ECML 2006; for agents Zhou et al., arXiv:2310.04406)."""

import math
from dataclasses import dataclass, field
from typing import Annotated, Literal

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field

from gymfleet_rollout.episodes import to_the_end
from gymfleet_rollout.strategy import BudgetSpent, Node, PlayContext, Strategy, StrategyFacts, StrategyOptions


class MctsOptions(StrategyOptions):
    """The growth of the tree."""

    simulations: Annotated[int, Field(ge=1, le=100_000), NUMBER] = 32
    """Number of descents from the root to a new node, for each episode requested."""
    select: Literal["uct", "puct"] = "uct"
    """The rule that chooses a child of a node: `uct`, or `puct`, which prefers what the policy asks for more often."""
    exploration: Annotated[float, Field(ge=0), NUMBER] = 1.0
    """Weight of rarely tried children relative to values."""
    children: Annotated[float, Field(gt=0, le=64), NUMBER] = 2.0
    """Children of a node at its first visit: k in the limit k N^a after N visits (progressive widening)."""
    widening: Annotated[float, Field(ge=0, le=1), NUMBER] = 0.5
    """The exponent a. With 0 the limit does not grow."""
    value: Literal["rollout", "evaluator"] = "rollout"
    """The value of a new node from `[rollout.evaluator]`: `rollout`, that of an episode that the policy plays on to
    the end; `evaluator`, that of the node itself."""
    enough: Annotated[float, NUMBER] | None = None
    """The search is over once as many episodes as requested have at least this value; without it, once all
    simulations are made."""


@dataclass(slots=True, eq=False)
class _State:
    """A node, and what is known of the tree below it."""

    node: Node
    asked: int = 1
    """How often the policy asked for the action that leads here."""
    visits: int = 0
    total: float = 0.0
    children: dict[str | None, "_State"] = field(default_factory=dict)
    """The child states by action."""

    @property
    def mean(self) -> float:
        return self.total / self.visits if self.visits else 0.0


class Mcts(Strategy[MctsOptions]):
    """The tree grows where values are high or little is known; the best finished episodes are exported.

    A simulation descends by `select` to a node that may have another child, asks the policy for one reply there and
    carries it out in a fork. If the reply asks for an action that was already tried, the simulation descends by
    `select` here too, which may choose another child: a policy that repeats itself would else search one path alone.
    The value of the node that it reaches counts for every node on the path.
    """

    Options = MctsOptions
    facts = StrategyFacts(evaluates=True, forks=True)

    def __init__(self, options: MctsOptions) -> None:
        super().__init__(options)
        self._ended: dict[Node, float] = {}

    async def play(self, ctx: PlayContext) -> None:
        """Search one tree for the whole group."""
        root = _State(await ctx.open())
        newest = root.node
        wanted = len(ctx.group.wanted)
        try:
            for _ in range(self.options.simulations * wanted):
                path = await self._descended(ctx, root)
                newest = path[-1].node
                value = await self._value(ctx, path[-1])
                for state in path:
                    state.visits, state.total = state.visits + 1, state.total + value
                    ctx.note(state.node, value=state.mean, visits=state.visits)
                if self._num_good() >= wanted:
                    break
        except BudgetSpent:
            pass
        best = sorted(self._ended, key=lambda leaf: -self._ended[leaf])[:wanted]
        for leaf in best or [newest]:
            ctx.export(leaf, selected=True)

    def _num_good(self) -> int:
        enough = self.options.enough
        return 0 if enough is None else sum(value >= enough for value in self._ended.values())

    async def _descended(self, ctx: PlayContext, root: _State) -> list[_State]:
        """Return the path to a state that is new, or over."""
        path = [root]
        while not (state := path[-1]).node.over:
            if len(state.children) < self._allowed(state) and (new := await self._grown(ctx, state)) is not None:
                return [*path, new]
            path.append(self._chosen(state))
        return path

    def _allowed(self, state: _State) -> int:
        return max(1, math.floor(self.options.children * math.pow(max(state.visits, 1), self.options.widening)))

    async def _grown(self, ctx: PlayContext, state: _State) -> _State | None:
        """Return a new child, or None if the policy asks for an existing one."""
        (reply,) = await ctx.propose(state.node)
        if (known := state.children.get(reply.action)) is not None:
            known.asked += 1
            return None
        (fork,) = await ctx.fork(state.node)
        # The fork is played on, so that the node itself can be forked again.
        child = _State(await ctx.act(fork, reply))
        state.children[reply.action] = child
        return child

    def _chosen(self, state: _State) -> _State:
        options, children = self.options, [*state.children.values()]
        asked = sum(child.asked for child in children)

        def score(child: _State) -> float:
            if options.select == "uct":
                unknown = math.sqrt(math.log(max(state.visits, 1)) / child.visits) if child.visits else math.inf
            else:
                unknown = child.asked / asked * math.sqrt(state.visits) / (1 + child.visits)
            return child.mean + options.exploration * unknown

        return max(children, key=score)

    async def _value(self, ctx: PlayContext, state: _State) -> float:
        if state.node in self._ended:
            return self._ended[state.node]
        end = state.node
        if self.options.value == "rollout" and not end.over:
            (fork,) = await ctx.fork(end)
            end = await to_the_end(ctx, fork)
            if not end.over:
                raise BudgetSpent("it cut a rollout short")
        (value,) = await ctx.evaluate([end])
        if end.over:
            self._ended[end] = value
            await ctx.release(end)
        return value
