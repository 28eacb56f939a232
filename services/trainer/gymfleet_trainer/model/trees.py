"""Rows that begin alike: a model computes their shared tokens once.

A token is predicted from the tokens before it in its row, so the tokens that several rows begin with have the same
states in all of them: the prompt of a group's episodes, the turns before a fork, the common prompt of a pair's sides,
instructions that all tasks have. They occur once among the tokens that a model runs over, as segments that others
continue; losses see whole rows, whose values are gathered from there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gymfleet_trainer.model.segments import Paths, Segments
from gymfleet_trainer.model.vision import PackedImages

if TYPE_CHECKING:
    from gymfleet_trainer.model.batching import TrainSequence

TokenIds: TypeAlias = NDArray[np.int64]
SHORTEST: Final = 16
"""Tokens that are worth a segment: a segment costs a small model on a CPU about as much as this many tokens."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The U tokens that a model runs over, and which of them predict the N trained tokens of the rows."""

    tokens: Tensor
    """(U,) int64."""
    positions: Tensor
    """(U,) int64, in the token's own row; (3, U) in time, height and width where there are images."""
    segments: Segments
    states: Tensor
    """(P,) int64, the tokens after which others are predicted."""
    targets: Tensor
    """(P,) int64, the token ids that are predicted there."""
    places: Tensor
    """(P,) int64, the places of these predicted tokens themselves."""
    uses: Tensor | None = None
    """(N,) int64, which of the P predictions each trained token has; if None, N is P, and each has its own."""
    images: PackedImages | None = None
    """The images at image tokens; None where there are none."""

    def states_of(self, hidden: Tensor) -> Tensor:
        """Return the (P, hidden) states that predict, from (U, hidden)."""
        return hidden[self.states] if self.uses is None else _taken(hidden, self.states)

    def states_at(self, hidden: Tensor) -> Tensor:
        """Return the (N, hidden) states of the trained tokens themselves, from (U, hidden)."""
        return hidden[self.places] if self.uses is None else _taken(_taken(hidden, self.places), self.uses)

    def of_trained(self, predicted: Tensor) -> Tensor:
        """Return the (N,) values of the trained tokens, from (P,)."""
        return predicted if self.uses is None else _taken(predicted, self.uses)

    def to(self, device: torch.device | str) -> "ModelInputs":
        """Return the inputs on `device`."""
        names = ("tokens", "positions", "states", "targets", "places")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        uses = None if self.uses is None else self.uses.to(device, non_blocking=True)
        images = None if self.images is None else self.images.to(device)
        return replace(self, **moved, uses=uses, segments=self.segments.to(device), images=images)


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Return `values[places]`, where places may repeat, with a gradient that is summed in a fixed order.

    Several threads sum the gradient of indexing on the CPU, and atomic additions that of `index_select` on a GPU.
    """
    return values.index_select(0, places) if values.device.type == "cpu" else values[places]


@dataclass(frozen=True, slots=True)
class Ordered:
    """Rows in the order of their tokens, which places rows that begin alike next to each other."""

    places: list[int]
    """Indices of the rows."""
    common: list[int]
    """How many first tokens each row has in common with the row before it; 0 for the first row."""

    @classmethod
    def of(cls, rows: Sequence["TrainSequence"], *, sharing: bool = True) -> "Ordered":
        """Return the order of some rows; equal rows keep theirs. Without `sharing`, none count as beginning alike."""
        tokens = [np.asarray(row.token_ids, dtype=np.int64) for row in rows]
        keys = [ids.tobytes() for ids in tokens]  # 8 bytes a token: rows that begin alike have keys that do
        places = sorted(range(len(rows)), key=keys.__getitem__)
        common = [_common(tokens[one], tokens[two]) if sharing else 0 for one, two in pairwise(places)]
        return cls(places, [0] * bool(places) + common)


def _common(one: TokenIds, other: TokenIds) -> int:
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def surely_shared(common: int) -> int:
    """Return how many of `common` tokens of two neighbours are computed once, whatever else is in the micro-batch."""
    return max(0, common - SHORTEST + 1)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A segment: its parent, and one of the rows that contain it, with its first and last (exclusive) token there."""

    parent: int
    row: "TrainSequence"
    start: int
    end: int


def shared_inputs(rows: Sequence["TrainSequence"], trained: Tensor) -> ModelInputs | None:
    """Return the inputs in which tokens that rows share occur once, or None if the rows share nothing.

    Args:
        rows: the rows of a micro-batch.
        trained: (N,) int64, the trained tokens of the rows placed end to end.
    """
    ordered = Ordered.of(rows)
    if max(ordered.common, default=0) < SHORTEST:
        return None
    pieces, used = _pieces(rows, ordered)
    lengths = tuple(piece.end - piece.start for piece in pieces)
    starts = [0, *accumulate(lengths)]
    token_ids = list(chain.from_iterable(piece.row.token_ids[piece.start : piece.end] for piece in pieces))
    tokens = torch.tensor(token_ids, dtype=torch.int64)
    where = _places(starts, used)
    distinct, uses = torch.unique(where[trained], return_inverse=True)
    states = torch.empty_like(distinct)
    states[uses] = where[trained - 1]  # the same from every row: what precedes a token in one does so in all
    return ModelInputs(
        tokens=tokens,
        positions=torch.tensor(list(chain.from_iterable(range(p.start, p.end) for p in pieces)), dtype=torch.int64),
        segments=Segments(lengths, torch.tensor(starts, dtype=torch.int32), _paths(pieces, lengths, starts)),
        states=states,
        targets=tokens[distinct],
        places=distinct,
        uses=uses,
    )


def _pieces(rows: Sequence["TrainSequence"], ordered: Ordered) -> tuple[list[_Piece], list[list[int]]]:
    """Return the segments, parents before children, and for each row the segments that it consists of."""
    pieces: list[_Piece] = []
    used: list[list[int]] = [[] for _ in rows]
    waiting = [(0, len(rows), -1)]
    while waiting:
        first, last, parent = waiting.pop()
        start = pieces[parent].end if parent >= 0 else 0
        common = min(ordered.common[first + 1 : last], default=len(rows[ordered.places[first]].token_ids))
        if common - start >= SHORTEST or (last - first == 1 and common > start):
            pieces.append(_Piece(parent, rows[ordered.places[first]], start, common))
            parent = len(pieces) - 1
            for place in ordered.places[first:last]:
                used[place].append(parent)
        if last - first > 1:
            bounds = [first, *(place for place in range(first + 1, last) if ordered.common[place] == common), last]
            waiting += [(*bound, parent) for bound in _backwards(bounds)]
    return pieces, used


def _backwards(bounds: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the spans between bounds, from the last to the first."""
    for place in range(len(bounds) - 1, 0, -1):
        yield bounds[place - 1], bounds[place]


def _places(starts: Sequence[int], used: Sequence[Sequence[int]]) -> Tensor:
    """Return the (T,) places of all rows' tokens among the distinct tokens."""
    spans = (range(starts[place], starts[place + 1]) for own in used for place in own)
    return torch.tensor(list(chain.from_iterable(spans)), dtype=torch.int64)


def _paths(pieces: Sequence[_Piece], lengths: Sequence[int], starts: Sequence[int]) -> Paths:
    ancestors: list[tuple[int, ...]] = []
    for piece in pieces:
        ancestors.append((*ancestors[piece.parent], piece.parent) if piece.parent >= 0 else ())
    whole = [(*before, place) for place, before in enumerate(ancestors)]
    sizes = tuple(sum(lengths[place] for place in path) for path in whole)
    return Paths(
        tuple(ancestors), sizes, _places(starts, whole), torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)
    )
