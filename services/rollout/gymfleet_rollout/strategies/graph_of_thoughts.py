"""Candidates for each action go through a graph of operations (Besta et al., arXiv:2308.09687)."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from gymfleet_contracts.numbers import NUMBER
from pydantic import Field, model_validator

from gymfleet_rollout.asking import VALUER, marks
from gymfleet_rollout.strategy import Node, PlayContext, Reply, Strategy, StrategyFacts, StrategyOptions

_SHOWN: Final = 600


class Operation(StrategyOptions):
    """One step on the way to an action."""

    do: Literal["generate", "aggregate", "refine", "score", "keep_best"]
    """`generate`: sample `count` more replies independently. `aggregate`: replace all replies by one that joins them.
    `refine`: replace each by a better one. `score`: the policy gives each a mark. `keep_best`: keep the `count` replies
    with the best marks."""
    count: Annotated[int, Field(ge=1, le=64), NUMBER] = 1
    """Replies of `generate`, answers for each mark of `score`, or replies that `keep_best` keeps."""


_DEFAULT: Final = (
    Operation(do="generate", count=3), Operation(do="score"), Operation(do="keep_best", count=2),
    Operation(do="aggregate"),
)  # fmt: skip


class GraphOptions(StrategyOptions):
    """The graph, from the first operation to the last."""

    operations: Annotated[tuple[Operation, ...], Field(min_length=1, max_length=32)] = _DEFAULT
    """Applied in order at each turn. The best remaining reply, or the first if there are no marks, is carried out."""

    def _fault(self) -> str | None:
        number, marked = 0, False
        for place, operation in enumerate(self.operations):
            if operation.do == "generate":
                number, marked = number + operation.count, False
            elif not number:
                return f"operations.{place}: there is nothing to {operation.do}: generate comes first"
            elif operation.do == "keep_best" and not marked:
                return f"operations.{place}: keep_best needs marks: score comes before it"
            elif operation.do == "aggregate":
                number, marked = 1, False
            elif operation.do != "keep_best":
                marked = operation.do == "score"
        return None

    @model_validator(mode="after")
    def operations_follow(self) -> "GraphOptions":
        """Require that each operation has something to work on."""
        if (fault := self._fault()) is not None:
            raise ValueError(fault)
        return self


@dataclass(slots=True)
class _Candidate:
    reply: Reply
    mark: float | None = None


class GraphOfThoughts(Strategy[GraphOptions]):
    """The policy thinks of several replies, marks, joins and improves them; only one is carried out.

    All are replies to the same observation; to join or improve candidates, the policy sees them below it.
    """

    Options = GraphOptions
    facts = StrategyFacts(by_sample=True, roles=(VALUER,))

    async def play(self, ctx: PlayContext) -> None:
        """Play one episode."""
        node = await ctx.open()
        while not node.over:
            node = await ctx.act(node, await self._thought(ctx, node))
        ctx.export(node, selected=True)

    async def _thought(self, ctx: PlayContext, node: Node) -> Reply:
        candidates: list[_Candidate] = []
        for operation in self.options.operations:
            candidates = await self._done(ctx, node, operation, candidates)
        return max(candidates, key=_mark).reply

    async def _done(
        self, ctx: PlayContext, node: Node, operation: Operation, candidates: list[_Candidate]
    ) -> list[_Candidate]:
        texts = [candidate.reply.text[:_SHOWN] for candidate in candidates]
        if operation.do == "generate":
            return candidates + [_Candidate(reply) for reply in await ctx.propose(node, operation.count)]
        if operation.do == "aggregate":
            listed = "\n".join(f"- {text}" for text in texts)
            hint = f"These are replies that you thought of:\n{listed}\nGive one reply that joins what is good in them."
            return [_Candidate((await ctx.propose(node, hint=hint))[0])]
        if operation.do == "refine":
            hints = [f"This is a reply that you thought of:\n{text}\nGive a better one." for text in texts]
            return [_Candidate((await ctx.propose(node, hint=hint))[0]) for hint in hints]
        if operation.do == "score":
            given = await marks(ctx, node, texts, operation.count)
            return [_Candidate(one.reply, mark) for one, mark in zip(candidates, given, strict=True)]
        return sorted(candidates, key=_mark, reverse=True)[: operation.count]


def _mark(candidate: _Candidate) -> float:
    return -1.0 if candidate.mark is None else candidate.mark
