"""A checksum of tensors' bytes, computed where they are, on a CPU or a GPU.

It is for accidents: torn, swapped or lost bytes. An attacker can make other bytes with the same sums.
"""

from typing import Final, Protocol, Self, SupportsInt

_CHUNK: Final = 1 << 20
_MASK: Final = (1 << 64) - 1


class Words(Protocol):
    """The methods needed of an int64 tensor (N,), whose sums and products wrap around; torch is not imported here."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Self: ...
    def __mul__(self, other: Self, /) -> Self: ...
    def sum(self) -> SupportsInt:
        """Return the sum of all words."""

    def cumsum(self, dim: int, /) -> Self:
        """Return running sums."""

    def new_ones(self, size: int, /) -> Self:
        """Return ones of the same dtype on the same device."""


class Checksum:
    """The checksum of words that come in consecutive parts."""

    def __init__(self) -> None:
        self._total = self._placed = self._length = 0

    def add(self, words: Words) -> None:
        """Add the next words."""
        places = words.new_ones(min(_CHUNK, len(words))).cumsum(0)
        for start in range(0, len(words), _CHUNK):
            part = words[start : start + _CHUNK]
            plain = int(part.sum())
            self._total += plain
            self._placed += int((part * places[: len(part)]).sum()) + (self._length + start) * plain
        self._length += len(words)

    def digits(self) -> str:
        """Return 32 hexadecimal digits: the sums of all words, and of each word times its place from 1, modulo 2^64."""
        return f"{self._total & _MASK:016x}{self._placed & _MASK:016x}"


def checksum(words: Words) -> str:
    """Return the digits of words given as a whole."""
    whole = Checksum()
    whole.add(words)
    return whole.digits()
