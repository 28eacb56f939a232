"""The places of the segments in a packed row of tokens, and which of them continue others."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Paths:
    """The attention of M segments where some continue others: a path is a segment's ancestors and itself, in order."""

    ancestors: tuple[tuple[int, ...], ...]
    """The segments that come before each segment, from the root on."""
    lengths: tuple[int, ...]
    """Tokens of each path."""
    tokens: Tensor
    """(K,) int64, the place in the row of each token of each path, one path after the other."""
    cu_seqlens: Tensor
    """(M + 1,) int32, where each path begins among these tokens; the last entry is K."""

    def to(self, device: torch.device | str) -> "Paths":
        """Return the paths on `device`."""
        return replace(
            self,
            tokens=self.tokens.to(device, non_blocking=True),
            cu_seqlens=self.cu_seqlens.to(device, non_blocking=True),
        )


@dataclass(frozen=True, slots=True)
class Segments:
    """The positions of M segments in a row of packed tokens."""

    lengths: tuple[int, ...]
    cu_seqlens: Tensor
    """(M + 1,) int32 on the model's device; the last entry is the row's length."""
    paths: Paths | None = None
    """The paths where some segments continue others; None if none does."""

    @property
    def longest(self) -> int:
        """Return the length of the longest context, including its last token."""
        return max(self.lengths if self.paths is None else self.paths.lengths)

    def to(self, device: torch.device | str) -> "Segments":
        """Return the segments on `device`."""
        paths = None if self.paths is None else self.paths.to(device)
        return replace(self, cu_seqlens=self.cu_seqlens.to(device, non_blocking=True), paths=paths)
