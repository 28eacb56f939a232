"""Rows that begin alike: a model computes once what they share.

Episodes that a strategy forked share turns, and their rows name them in `TrainSequence.nodes`. What two rows share is a
path of nodes from their first token on. It stands once among the tokens that a model runs over, as segments that others
go on from; losses see whole rows, whose values are gathered from there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gymfleet_trainer.model.segments import Paths, Segments

if TYPE_CHECKING:
    from gymfleet_trainer.model.batching import TrainSequence


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """What a model runs over, U tokens, and which of them predict the N trained tokens of the rows."""

    tokens: Tensor
    """(U,) int64."""
    positions: Tensor
    """(U,) int64, in the row that a token is of."""
    segments: Segments
    states: Tensor
    """(P,) int64, the tokens after which others are predicted."""
    targets: Tensor
    """(P,) int64, the token ids that are predicted there."""
    uses: Tensor | None = None
    """(N,) int64, which of the P predictions each trained token has; without it N is P, and each has its own."""

    def states_of(self, hidden: Tensor) -> Tensor:
        """Return the (P, hidden) states that predict, of (U, hidden)."""
        return hidden[self.states] if self.uses is None else _taken(hidden, self.states)

    def of_trained(self, predicted: Tensor) -> Tensor:
        """Return the (N,) values of the trained tokens, of (P,)."""
        return predicted if self.uses is None else _taken(predicted, self.uses)

    def to(self, device: torch.device | str) -> "ModelInputs":
        """Return the inputs on `device`."""
        names = ("tokens", "positions", "states", "targets")
        moved = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        uses = None if self.uses is None else self.uses.to(device, non_blocking=True)
        return replace(self, **moved, uses=uses, segments=self.segments.to(device))


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """Return `values[places]`, where places may repeat, with a gradient that is summed in a fixed order.

    That of indexing is summed by several threads on the CPU, that of `index_select` by atomic additions on a GPU.
    """
    return values.index_select(0, places) if values.device.type == "cpu" else values[places]


class Forest:
    """The paths of nodes that some rows begin with, each node once."""

    def __init__(self) -> None:
        self.paths: list[list[int]] = []
        """For each row that was added, the numbers of its nodes."""
        self._numbers: dict[tuple[int, str, str], int] = {}
        self._first: list[tuple[TrainSequence, int, int]] = []
        """Per node, the row that it was first seen in, and its first and last (exclusive) token there."""

    def add(self, row: "TrainSequence") -> int:
        """Add a row, and return how many of its tokens no row before it has.

        Raises ValueError if a node has other tokens than in another row that came the same way.
        """
        path: list[int] = []
        new, start, number = len(row.token_ids), 0, -1
        for node, end in row.nodes:
            number = self._numbers.setdefault((number, row.group_id, node), len(self._first))
            if number == len(self._first):
                self._first.append((row, start, end))
            else:
                self._require_equal(row, start, end, number, node)
                new -= end - start
            path.append(number)
            start = end
        self.paths.append(path)
        return new

    def end(self, number: int) -> int:
        """Return where a node ends in every row that has it."""
        return self._first[number][2]

    def _require_equal(self, row: "TrainSequence", start: int, end: int, number: int, node: str) -> None:
        other, other_start, other_end = self._first[number]
        if row.token_ids[start:end] != other.token_ids[other_start:other_end]:
            raise ValueError(
                f"{other.trajectory_id} and {row.trajectory_id} share the node {node!r}, but not its tokens: one of "
                "the records is wrong"
            )


def distinct_tokens(rows: Sequence["TrainSequence"]) -> int:
    """Return how many tokens a model runs over for these rows in one micro-batch. Raises ValueError as `Forest`."""
    forest = Forest()
    return sum(map(forest.add, rows))


def joined(units: Sequence[Sequence[int]], rows: Sequence["TrainSequence"], limit: int) -> list[list[int]]:
    """Join units of rows (indices) that share tokens, as far as their distinct tokens do not exceed `limit`.

    The others stay as they are, in their order. Raises ValueError as `Forest`.
    """
    trees: dict[object, list[Sequence[int]]] = {}
    for unit in units:
        first = rows[unit[0]]
        trees.setdefault((first.group_id, first.nodes[0].node) if first.nodes else unit[0], []).append(unit)
    return [part for tree in trees.values() for part in _parts(tree, rows, limit)]


def _parts(tree: list[Sequence[int]], rows: Sequence["TrainSequence"], limit: int) -> Iterator[list[int]]:
    # In the order of their paths, those that share the most are next to each other.
    ordered = sorted(tree, key=lambda unit: ([span.node for span in rows[unit[0]].nodes], unit[0]))
    part: list[int] = []
    forest, size = Forest(), 0
    for unit in ordered:
        new = sum(forest.add(rows[index]) for index in unit)
        if part and size + new > limit:
            yield sorted(part)
            part, forest = [], Forest()
            size, new = 0, sum(forest.add(rows[index]) for index in unit)
        part += unit
        size += new
    yield sorted(part)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A segment: its parent, and one of the rows that have it, with its first and last (exclusive) token there."""

    parent: int
    row: "TrainSequence"
    start: int
    end: int


def shared_inputs(rows: Sequence["TrainSequence"], trained: Tensor) -> ModelInputs | None:
    """Return the inputs in which what rows share stands once, or None if they share nothing.

    Args:
        rows: the rows of a micro-batch.
        trained: (N,) int64, the trained tokens, of rows that are placed end to end.
    """
    if not any(row.nodes for row in rows):
        return None
    forest = Forest()
    for row in rows:
        forest.add(row)
    users = Counter(chain.from_iterable(forest.paths))
    if not any(count > 1 for count in users.values()):
        return None
    pieces, used = _pieces(rows, forest, users)
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
        uses=uses,
    )


def _pieces(
    rows: Sequence["TrainSequence"], forest: Forest, users: Counter[int]
) -> tuple[list[_Piece], list[list[int]]]:
    """Return the segments, parents before children, and which of them each row is made of."""
    pieces: list[_Piece] = []
    known: dict[int, int] = {}
    used: list[list[int]] = []
    for row, path in zip(rows, forest.paths, strict=True):
        own: list[int] = []
        parent, start = -1, 0
        for first, end in _runs(path, forest, users, len(row.token_ids)):
            place = known.get(first, len(pieces))
            if place == len(pieces):
                pieces.append(_Piece(parent, row, start, end))
                if users[first] > 1:
                    known[first] = place
            own.append(place)
            parent, start = place, end
        used.append(own)
    return pieces, used


def _runs(path: Sequence[int], forest: Forest, users: Counter[int], length: int) -> Iterator[tuple[int, int]]:
    """Yield the first node and the end of each part of a row that the same rows have; the last is its own, with -1.

    Who has a node has those before it, so that two nodes of a path with equally many rows have the same.
    """
    shared = [number for number in path if users[number] > 1]
    for _, run in groupby(shared, key=users.__getitem__):
        numbers = list(run)
        yield numbers[0], forest.end(numbers[-1])
    if not shared or forest.end(shared[-1]) < length:
        yield -1, length


def _places(starts: Sequence[int], used: Sequence[Sequence[int]]) -> Tensor:
    """Return the (T,) places among the distinct tokens of all rows' tokens."""
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
