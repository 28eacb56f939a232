"""A corpus that can be searched: by words, by meaning, or by both."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from gymfleet_envs.lucene.index import IndexBuilder
from gymfleet_envs.searchqa.passages import Passage, Passages

MAX_QUERY_CHARS: Final = 2_000
"""The rest of a longer query is not read; AgentGym's encoder reads 256 tokens."""
_RANK_CONSTANT: Final = 60
_DEPTH: Final = 100
"""The number of passages of each ranking that count in a merged one."""

Embed: TypeAlias = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Maps texts to their vectors (N, D), each of length 1."""


class Retriever(Protocol):
    """A search for passages."""

    def search(self, text: str, limit: int, /) -> list[int]:
        """Return numbers of the best passages, best first."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Passages and their retriever, shared by all sessions of a process."""

    passages: Passages
    retriever: Retriever

    def search(self, query: str, limit: int) -> list[int]:
        """Return numbers of the best passages, best first. Raises `EngineLost` if vectors are unavailable."""
        return self.retriever.search(query[:MAX_QUERY_CHARS], limit)


Library: TypeAlias = Callable[[], Corpus]
"""Returns a corpus, which the first call makes."""


class Dense:
    """Exact nearest neighbours by the angle between vectors: all of them are compared.

    Args:
        vectors: (N, D), each of length 1.
        embed: makes the vector of a query.
    """

    def __init__(self, vectors: npt.NDArray[np.float32], embed: Embed) -> None:
        self._vectors = vectors
        self._embed = embed

    def search(self, text: str, limit: int) -> list[int]:
        """Return the nearest passages, nearest first; of equally near ones, the first in the corpus."""
        if not text.strip():
            return []
        near = self._vectors @ self._embed([text])[0]
        limit = min(limit, len(near))
        least = np.partition(near, len(near) - limit)[len(near) - limit]
        found = np.flatnonzero(near >= least)
        return [int(number) for number in found[np.argsort(-near[found], kind="stable")][:limit]]


class Hybrid:
    """Two rankings merged by their reciprocal ranks (Cormack et al., SIGIR 2009): the sum of 1 / (60 + rank)."""

    def __init__(self, *retrievers: Retriever) -> None:
        self._retrievers = retrievers

    def search(self, text: str, limit: int) -> list[int]:
        """Return the passages that the rankings together place highest; of equal ones, the first in the corpus."""
        scores: dict[int, float] = {}
        for retriever in self._retrievers:
            for rank, number in enumerate(retriever.search(text, max(limit, _DEPTH)), 1):
                scores[number] = scores.get(number, 0.0) + 1 / (_RANK_CONSTANT + rank)
        return sorted(scores, key=lambda number: (-scores[number], number))[:limit]


def memory_corpus(passages: Iterable[Passage]) -> Corpus:
    """Return a corpus in memory that is searched by words."""
    held, builder = tuple(passages), IndexBuilder()
    for passage in held:
        builder.add(passage.whole)
    return Corpus(held, builder.finish())
