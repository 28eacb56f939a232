"""A checksum of tensors' bytes that is computed where they are, on a CPU or a GPU.

It is for accidents: torn, swapped or lost bytes. Who means harm can make other bytes with the same sums.
"""

from typing import Final, Protocol, Self, SupportsInt

_CHUNK: Final = 1 << 20
_MASK: Final = (1 << 64) - 1


class Words(Protocol):
    """What is needed of a tensor of int64, (N,), whose sums and products wrap around; torch is not imported here."""

    def __len__(self) -> int: ...
    def __getitem__(self, rows: slice, /) -> Self: ...
    def __mul__(self, other: Self, /) -> Self: ...
    def sum(self) -> SupportsInt:
        """Return the sum of all."""

    def cumsum(self, dim: int, /) -> Self:
        """Return running sums."""

    def new_ones(self, size: int, /) -> Self:
        """Return ones of the same dtype on the same device."""


def checksum(words: Words) -> str:
    """Return 32 hexadecimal digits: the sum of all words and that of each times its place from 1, modulo 2^64."""
    total = placed = 0
    places = words.new_ones(min(_CHUNK, len(words))).cumsum(0)
    for start in range(0, len(words), _CHUNK):
        part = words[start : start + _CHUNK]
        plain = int(part.sum())
        total += plain
        placed += int((part * places[: len(part)]).sum()) + start * plain
    return f"{total & _MASK:016x}{placed & _MASK:016x}"
