"""The reward service's values of the nodes of a group, requested once for each transcript."""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from gymfleet_contracts.reward import ScoreRequest
from gymfleet_contracts.rollout import GroupRequest

from gymfleet_rollout.budget import Spending
from gymfleet_rollout.errors import StrategyError
from gymfleet_rollout.parts import Parts
from gymfleet_rollout.seen import Seen
from gymfleet_rollout.tree import Node
from gymfleet_rollout.unended import unended

_OF_ONE_PLAY: Final = {
    "node", "parent", "generate_s", "environment_s", "response_logprobs", "policy_versions", "num_prefilled_tokens",
}  # fmt: skip
"""Fields of turns that do not describe how an episode went."""


class NodeValues:
    """Values of nodes by transcript: episodes that went the same way so far have one value, which counts once."""

    def __init__(self, parts: Parts, group: GroupRequest, spending: Spending, seen: Seen) -> None:
        self._parts = parts
        self._group = group
        self._spending = spending
        self._seen = seen
        self._known: dict[bytes, float] = {}
        self._asking: dict[bytes, asyncio.Future[None]] = {}
        """The requests of branches, until they are answered or have failed."""

    async def of(self, nodes: Sequence[Node]) -> list[float]:
        """Return the value of each node. Raises EvaluationFailed, BudgetSpent."""
        evaluator, spec = self._parts.evaluator, self._group.evaluator
        if evaluator is None or spec is None:  # refused before anything is played
            raise StrategyError("no evaluator was given")
        transcripts = [_transcript(node) for node in nodes]
        while under_way := {self._asking[key] for key in transcripts if key in self._asking}:
            await asyncio.wait(under_way)  # one that fails is asked for again, by the branch that wants it
        asked = {key: node for key, node in zip(transcripts, nodes, strict=True) if key not in self._known}
        self._spending.evaluate(len(asked))
        reward = spec.reward()
        requests = [
            ScoreRequest(
                trajectory=unended(self._group, sample, self._parts, node, self._seen.files(node.turns())),
                reward=reward,
            )
            for sample, node in enumerate(asked.values())
        ]
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking |= dict.fromkeys(asked, over)
        try:
            values = await evaluator.totals(requests, timeout_s=self._group.limits.generate_timeout_s)
            self._known |= dict(zip(asked, values, strict=True))
        finally:
            for key in asked:
                del self._asking[key]
            over.set_result(None)
        return [self._known[key] for key in transcripts]

    @property
    def components(self) -> tuple[str, ...]:
        """Return the components of the reward by which nodes are valued."""
        return () if self._group.evaluator is None else tuple(sorted(set(self._group.evaluator.used.values())))


def _transcript(node: Node) -> bytes:
    """Return a digest of all that a component of the reward may read: it differs if an episode went differently."""
    told = hashlib.blake2b(digest_size=16)
    for turn in node.turns():
        told.update(turn.model_dump_json(exclude=_OF_ONE_PLAY).encode())
    told.update(repr((node.observation, node.score, node.ended)).encode())
    return told.digest()
