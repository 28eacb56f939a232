"""Full-text search: BM25 with Lucene's arithmetic and Anserini's constants, over arrays that can lie on disk.

Upstream searches with pyserini, whose results this module reproduces: k1 = 0.9, b = 0.4, lengths
rounded as Lucene stores them in a byte, equal scores in the order of the documents.
"""

import shutil
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from gymfleet_envs.lucene.analysis import terms

K1: Final = 0.9
B: Final = 0.4
MAX_QUERY_TERMS: Final = 256
_CHUNK_POSTINGS: Final = 4_000_000
ARRAYS: Final = ("offsets", "documents", "impacts")

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


class Vocabulary(Protocol):
    """The numbers of terms; None for a term that no document holds."""

    def get(self, term: str, /) -> int | None:
        """Return the number of a term."""


class Index:
    """Postings by term: `documents[offsets[t]:offsets[t + 1]]` ascending, and how much each adds to a score."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        offsets: npt.NDArray[np.int64],
        documents: IntArray,
        impacts: FloatArray,
        size: int,
    ) -> None:
        self._vocabulary = vocabulary
        self._offsets = offsets
        self._documents = documents
        self._impacts = impacts
        self._size = size

    def search(self, text: str, limit: int) -> list[int]:
        """Return the numbers of the best documents, best first. Any text is a bag of words; it has no operators."""
        scores = np.zeros(self._size, np.float64)
        for term, count in list(Counter(terms(text)).items())[:MAX_QUERY_TERMS]:
            number = self._vocabulary.get(term)
            if number is not None:
                begin, end = self._offsets[number], self._offsets[number + 1]
                scores[self._documents[begin:end]] += self._impacts[begin:end] * np.float32(count)
        scores = scores.astype(np.float32)
        found = np.flatnonzero(scores)
        if len(found) > limit:
            least = np.partition(scores[found], len(found) - limit)[len(found) - limit]
            found = found[scores[found] >= least]
        best = found[np.argsort(-scores[found], kind="stable")][:limit]
        return [int(number) for number in best]


class IndexBuilder:
    """Takes documents one by one; with a directory, it holds only a bounded part of them in memory."""

    def __init__(self, directory: Path | None = None) -> None:
        self.vocabulary: dict[str, int] = {}
        self._directory = directory
        self._spilled = directory / "spilled" if directory else None
        if self._spilled:
            self._spilled.mkdir()
        self._lengths: list[int] = []
        self._num_chunks = 0
        self._chunks: list[tuple[IntArray, IntArray, FloatArray]] = []
        self._rows = array("i")  # term, document, count; term, document, count; ...

    def add(self, text: str) -> None:
        """Add the next document."""
        found = terms(text)
        number = len(self._lengths)
        self._lengths.append(len(found))
        vocabulary = self.vocabulary
        for term, count in Counter(found).items():
            self._rows.extend((vocabulary.setdefault(term, len(vocabulary)), number, count))
        if len(self._rows) >= 3 * _CHUNK_POSTINGS:
            self._spill()

    def finish(self) -> Index:
        """Merge the chunks: each adds to the postings of its terms, in the order of the documents."""
        self._spill()
        size, num_terms = len(self._lengths), len(self.vocabulary)
        frequencies = np.zeros(num_terms, np.int64)
        for chunk_terms, _, _ in self._each_chunk():
            frequencies += np.bincount(chunk_terms, minlength=num_terms)
        offsets = np.concatenate(([0], np.cumsum(frequencies))).astype(np.int64)
        documents, impacts = self._output(int(offsets[-1]))
        rarities = np.log(1 + (size - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
        lengths = self._rounded_lengths()
        average = sum(self._lengths) / max(size, 1) or 1.0
        norms = (1 / (K1 * (1 - B + B * lengths / average))).astype(np.float32)
        cursor = offsets[:-1].copy()
        for chunk_terms, chunk_documents, counts in self._each_chunk():
            firsts = np.searchsorted(chunk_terms, np.unique(chunk_terms))
            runs = np.diff(np.r_[firsts, len(chunk_terms)]).astype(np.int64)
            places = cursor[chunk_terms] + np.arange(len(chunk_terms)) - np.repeat(firsts, runs)
            weight = rarities[chunk_terms]
            documents[places] = chunk_documents
            impacts[places] = weight - weight / (np.float32(1) + counts * norms[chunk_documents])
            cursor += np.bincount(chunk_terms, minlength=num_terms)
        if self._directory and self._spilled:
            np.save(self._directory / "offsets.npy", offsets)
            shutil.rmtree(self._spilled)
        return Index(self.vocabulary, offsets, documents, impacts, size)

    def _spill(self) -> None:
        rows = np.array(self._rows, np.int32).reshape(-1, 3)
        self._rows = array("i")
        order = np.argsort(rows[:, 0], kind="stable")
        chunk = (rows[order, 0], rows[order, 1], rows[order, 2].astype(np.float32))
        if self._spilled:
            np.savez(self._spilled / f"{self._num_chunks}.npz", *chunk)
        else:
            self._chunks.append(chunk)
        self._num_chunks += 1

    def _each_chunk(self) -> Iterable[tuple[IntArray, IntArray, FloatArray]]:
        if not self._spilled:
            yield from self._chunks
            return
        for number in range(self._num_chunks):
            with np.load(self._spilled / f"{number}.npz") as chunk:
                yield chunk["arr_0"], chunk["arr_1"], chunk["arr_2"]

    def _output(self, size: int) -> tuple[Any, Any]:
        if not self._directory:
            return np.empty(size, np.int32), np.empty(size, np.float32)
        made: Any = np.lib.format.open_memmap
        documents, impacts = (self._directory / f"{name}.npy" for name in ("documents", "impacts"))
        return made(documents, "w+", np.int32, (size,)), made(impacts, "w+", np.float32, (size,))

    def _rounded_lengths(self) -> npt.NDArray[np.float64]:
        return np.array([_LENGTHS[bisect_right(_LENGTHS, length) - 1] for length in self._lengths], np.float64)


def _byte_lengths() -> list[int]:
    """Return the lengths that Lucene can store: exact up to 24 + 15, then with four significant bits."""
    return [
        code if code < 24 else 24 + ((code - 24 & 7 | 8) << (code - 24 >> 3) - 1 if code - 24 > 7 else code - 24)
        for code in range(256)
    ]


_LENGTHS: Final = _byte_lengths()
