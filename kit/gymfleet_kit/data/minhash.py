"""Texts that are nearly the same: MinHash signatures, and an index of them that finds the similar ones.

A signature keeps 4 bits of each of 512 minima (b-bit minwise hashing, Li and König, arXiv:0910.3349), and the index
puts it into one bucket per band (Broder 1997; Leskovec et al., Mining of Massive Datasets, section 3.4). Everything is
in arrays, because dictionaries would take several kilobytes per text.
"""

import zlib
from math import ceil
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Unit = Literal["words", "chars"]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Longs: TypeAlias = npt.NDArray[np.uint64]

NUM_HASHES: Final = 512
NUM_BANDS: Final = 32
BYTES_PER_TEXT: Final = NUM_HASHES // 2 + NUM_BANDS * 8
"""Size of the index per text: two minima share a byte, and each band has a bucket and a link of 4 bytes."""
_BITS: Final = 4
_CHANCE: Final = 2.0**-_BITS
"""The probability that 4 bits are equal by chance."""
_RECALL: Final = 0.995
"""The least probability that two texts exactly as similar as the threshold share a bucket."""
_MOST_SHINGLES: Final = 1 << 14
"""Shingles whose minima are taken at a time, which limits the memory of a long text to 32 MB."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


def jaccard(one: Longs, other: Longs) -> float:
    """Return the Jaccard similarity of two sets of shingles, which signatures estimate."""
    return float(np.intersect1d(one, other).size / np.union1d(one, other).size)


def shingles(text: str, unit: Unit, size: int) -> Longs:
    """Return hashes of the runs of `size` words or characters, (n,) with n >= 1, ignoring upper case and blanks.

    A shorter text is one run.
    """
    words = text.casefold().split()
    if unit == "words":
        codes = np.fromiter((zlib.crc32(word.encode(errors="replace")) for word in words), np.uint64, len(words))
    else:
        codes = np.frombuffer(" ".join(words).encode("utf-32-le", errors="replace"), np.uint32).astype(np.uint64)
    size = max(1, min(size, len(codes)))
    sums = np.zeros(max(1, len(codes) - size + 1), np.uint64)
    for place in range(min(size, len(codes))):
        sums = _mixed(sums + codes[place : place + len(sums)] + np.uint64(1))
    return np.unique(sums)


class Signatures:
    """Makes signatures: with the same seed, the same shingles give the same signature."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self._factors = random.integers(1 << 31, size=NUM_HASHES, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        self._terms = random.integers(1 << 32, size=NUM_HASHES, dtype=np.uint32)

    def of(self, given: Longs) -> Bytes:
        """Return a signature, (512,) with values below 16."""
        folded = (given >> np.uint64(32)).astype(np.uint32)
        parts = [self._minima(folded[at : at + _MOST_SHINGLES]) for at in range(0, len(folded), _MOST_SHINGLES)]
        lowest = np.minimum.reduce(parts).astype(np.uint64)
        # The bits of a minimum reveal how small it is, and thus the number of shingles; mixed, they do not.
        return (_mixed(lowest + np.uint64(1)) >> np.uint64(64 - _BITS)).astype(np.uint8)

    def _minima(self, folded: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        hashed = np.multiply.outer(folded, self._factors)
        hashed += self._terms
        lowest: npt.NDArray[np.uint32] = hashed.min(axis=0)
        return lowest


class SimilarTexts:
    """An index of signatures, which finds whether one of them is similar to another.

    Takes `BYTES_PER_TEXT` (512) bytes per signature, and up to half as much again while it grows.
    """

    def __init__(self, threshold: float, *, capacity: int = 1024) -> None:
        self._least = ceil(NUM_HASHES * expected(threshold))
        self._rows = rows_for(threshold)
        self._count = 0
        self._packed = np.zeros((capacity, NUM_HASHES // 2), np.uint8)
        self._links = np.full((capacity, NUM_BANDS), -1, np.int32)
        self._heads = np.full((NUM_BANDS, capacity), -1, np.int32)

    def has_similar(self, signature: Bytes) -> bool:
        """Return whether the estimated similarity to an added signature reaches the threshold."""
        packed = _packed(signature)
        bands = np.arange(NUM_BANDS)
        found = self._heads[bands, self._buckets(signature[None], bands)[0]]
        while (there := found >= 0).any():
            found, bands = found[there], bands[there]
            if (_num_equal(self._packed[found], packed) >= self._least).any():
                return True
            found = self._links[found, bands]
        return False

    def add(self, signature: Bytes) -> None:
        """Add a signature."""
        if self._count == len(self._packed):
            self._grow()
        bands = np.arange(NUM_BANDS)
        buckets = self._buckets(signature[None], bands)[0]
        self._packed[self._count] = _packed(signature)
        self._links[self._count] = self._heads[bands, buckets]
        self._heads[bands, buckets] = self._count
        self._count += 1

    def _buckets(self, signatures: Bytes, bands: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the buckets of signatures (n, 512) in some bands, (n, bands)."""
        keys = np.zeros((len(signatures), len(bands)), np.uint64)
        for row in range(self._rows):
            keys = (keys << np.uint64(_BITS)) | signatures[:, bands * self._rows + row]
        return (_mixed(keys + np.uint64(1)) % np.uint64(self._heads.shape[1])).astype(np.int64)

    def _grow(self) -> None:
        """Make room for half as many again, in place; every signature then gets another bucket."""
        capacity = self._count + self._count // 2
        self._packed.resize((capacity, NUM_HASHES // 2), refcheck=False)
        self._links.resize((capacity, NUM_BANDS), refcheck=False)
        del self._heads
        self._heads = np.full((NUM_BANDS, capacity), -1, np.int32)
        for band in range(NUM_BANDS):
            self._relink(band)

    def _relink(self, band: int) -> None:
        """Chain the signatures of each bucket of a band, the last one first."""
        columns = np.arange(band * self._rows, (band + 1) * self._rows)
        rows = (self._packed[: self._count, columns // 2] >> ((columns % 2) * _BITS).astype(np.uint8)) & np.uint8(15)
        buckets = self._buckets(rows, np.zeros(1, np.int64))[:, 0]
        order = np.argsort(buckets, kind="stable")
        follows = buckets[order[1:]] == buckets[order[:-1]]
        self._links[order[0], band] = -1
        self._links[order[1:], band] = np.where(follows, order[:-1], -1)
        self._heads[band, buckets] = np.arange(self._count)  # of equal buckets the last one stands


def expected(similarity: float) -> float:
    """Return the expected share of equal places in the signatures of two texts."""
    return _CHANCE + (1 - _CHANCE) * similarity


def rows_for(threshold: float) -> int:
    """Return the most rows of a band with which texts at the threshold are still found with a probability of 99.5 %."""
    most = NUM_HASHES // NUM_BANDS
    found = [rows for rows in range(1, most + 1) if 1 - (1 - expected(threshold) ** rows) ** NUM_BANDS >= _RECALL]
    return max(found, default=1)


def _packed(signature: Bytes) -> Bytes:
    packed: Bytes = signature[::2] | (signature[1::2] << np.uint8(_BITS))
    return packed


def _num_equal(packed: Bytes, other: Bytes) -> npt.NDArray[np.int64]:
    """Return the number of places in which each of the signatures (n, 256) equals the other one, (n,)."""
    differ = packed ^ other
    low, high = (differ & np.uint8(0x0F)) == 0, (differ & np.uint8(0xF0)) == 0
    return np.asarray(low.sum(axis=1) + high.sum(axis=1))


def _mixed(values: Longs) -> Longs:
    """Return the values with all bits depending on all others (the finaliser of splitmix64)."""
    values = values * _MIX
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Longs = values ^ (values >> np.uint64(31))
    return mixed
