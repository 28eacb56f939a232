"""Turn trajectories into packed micro-batches.

A trajectory's tokens are exactly the tokens that the engine saw and sampled: the turns of a sequence are concatenated,
and nothing is tokenised again. Sequences are packed end to end without padding; attention separates them by
`cu_seqlens`. Tokens that rows share are computed once: see `trees.py`.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

import torch
from gymfleet_contracts.observation import ImageFile
from gymfleet_contracts.trajectory import ScoredTrajectory, StateValue, Turn
from torch import Tensor

from gymfleet_trainer.model.segments import Segments
from gymfleet_trainer.model.trees import ModelInputs, Ordered, shared_inputs, surely_shared
from gymfleet_trainer.model.vision import PackedImages, SeenImage, packed_images, positions_of, require_in_order

_DIGEST_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """A turn of an episode: the span of the tokens that were written in it."""

    place: int
    """Index of the turn in the episode, from 0."""
    start: int
    """Where its written tokens begin in the row."""
    end: int
    """Where they end, exclusive; `start` for a turn without any."""
    anchor: str
    """Equal for turns of a task that were played in the same state: the environment's key, or else a hash of the
    observation."""
    value: StateValue | None = None
    """The value of the state, where the strategy provides it."""
    node: str | None = None
    """The node of the group's tree that it leads to; None where the strategy plays each episode separately."""
    parent: str | None = None
    """The node that it continues from."""


@dataclass(frozen=True, slots=True)
class UnreadImage:
    """An image in a row, whose file has not been decoded yet."""

    start: int
    """The first of its image tokens."""
    num_tokens: int
    file: ImageFile

    @property
    def end(self) -> int:
        """Return where its tokens end, exclusive."""
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class TrainSequence:
    """A row: a sequence of tokens that the policy was sampled from, in flat lists with one entry per token.

    `loss_mask` is True on tokens that the model wrote, in a role that is trained. `behaviour_logprobs` (of the sampler)
    and `token_rewards` are 0 elsewhere, except for rewards from before the first of these tokens. `staleness` is the
    number of policy versions published since the oldest token was sampled.

    Rows of one episode share its `trajectory_id` and are in order: there are several where its context was replaced.

    `final_prompt_token_ids` is None if the environment ended the episode, or if it continues in another row. If the
    recipe cut the episode off, it is the prompt that the policy could not answer. It is not part of the sequence, but
    leads to the state a critic bootstraps from.

    `fields` holds an algorithm's additions: (L,) float tensors on the CPU, by name. Rows that name the same `unit`,
    such as the two of a pair, are packed into the same micro-batch.

    `temperature` is the one at which the row was sampled; None for that of the recipe.

    `turns` are the turns whose tokens the row holds, in order; none where a row belongs to no episode.

    `images` are the images at the row's image tokens, in order. Those of episodes are files until `learning.images`
    reads them: rows with files are not packed.
    """

    token_ids: list[int]
    loss_mask: list[bool]
    behaviour_logprobs: list[float]
    token_rewards: list[float]
    staleness: int
    trajectory_id: str
    final_prompt_token_ids: list[int] | None = None
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    unit: str | None = None
    temperature: float | None = None
    turns: tuple[TurnSpan, ...] = ()
    images: tuple[SeenImage | UnreadImage, ...] = ()

    def __post_init__(self) -> None:
        length = len(self.token_ids)
        if length == 0:
            raise ValueError(f"{self.trajectory_id}: a sequence needs at least one token")
        per_token = (self.loss_mask, self.behaviour_logprobs, self.token_rewards)
        if any(len(values) != length for values in per_token):
            raise ValueError(f"{self.trajectory_id}: every per-token list must have {length} entries, one per token id")
        for name, values in self.fields.items():
            if values.shape != (length,):
                raise ValueError(f"{self.trajectory_id}: {name} has the shape {tuple(values.shape)}, not ({length},)")
        bounds = [0, *chain.from_iterable((turn.start, turn.end) for turn in self.turns), length]
        places = [turn.place for turn in self.turns]
        require_in_order(self.images, length, self.trajectory_id)
        if any(any(self.loss_mask[image.start : image.end]) for image in self.images):
            raise ValueError(f"{self.trajectory_id}: an image token has a loss")
        if bounds != sorted(bounds) or any(later <= earlier for earlier, later in pairwise(places)):
            raise ValueError(
                f"{self.trajectory_id}: turns must follow one another within {length} tokens: {list(self.turns)}"
            )

    @property
    def group_id(self) -> str:
        """Return the group's part of the trajectory id, `run/group/sample`."""
        return self.trajectory_id.rpartition("/")[0] or self.trajectory_id

    @property
    def num_trained(self) -> int:
        """Return the number of tokens with a loss. A sequence's first token has no context to be predicted from."""
        return sum(self.loss_mask[1:])

    @property
    def total_reward(self) -> float:
        """Return the row's share of the episode's undiscounted return."""
        return sum(self.token_rewards)

    def with_fields(self, **fields: Tensor) -> "TrainSequence":
        """Return a copy with more fields; a field with an existing name is replaced."""
        return replace(self, fields={**self.fields, **fields})

    @property
    def seen(self) -> tuple[SeenImage, ...]:
        """Return the row's images. Raises ValueError if one was not read."""
        seen = tuple(image for image in self.images if isinstance(image, SeenImage))
        if len(seen) < len(self.images):
            raise ValueError(f"{self.trajectory_id}: its images are files that nobody read")
        return seen

    def mask(self) -> Tensor:
        """Return the (L,) bool mask of the tokens with a loss; the first token never has one."""
        mask = torch.tensor(self.loss_mask)
        mask[0] = False
        return mask


def sequences_from_trajectory(
    scored: ScoredTrajectory, *, staleness: int = 0, roles: Collection[str] | None = None
) -> list[TrainSequence]:
    """Return a row for each sequence that the policy was sampled from, in order: one unless the context was replaced.

    An episode without a turn has none.
    A row holds its turns' prompt and response ids, end to end; a turn without log-probabilities (an expert's) gets 0.
    With `roles`, only the tokens of these roles have a loss. To them, other roles are part of the environment: the
    reward of another role counts for the last of their tokens before it.
    Raises ValueError if log-probabilities or token rewards do not align with the response ids.
    """
    trajectory, reward = scored.trajectory, scored.reward
    name = trajectory.trajectory_id
    if reward is not None and len(reward.token_rewards) != len(trajectory.turns):
        raise ValueError(f"{name}: {len(reward.token_rewards)} rows of token rewards for {len(trajectory.turns)} turns")
    files = {file.sha256: file for file in trajectory.images}
    rows = []
    first = 0
    for turns in trajectory.sequences():
        rewards = None if reward is None else reward.token_rewards[first : first + len(turns)]
        row = _sequence(turns, rewards, name, first=first, staleness=staleness, roles=roles)
        rows.append(replace(row, temperature=trajectory.temperature, images=tuple(_images(turns, files))))
        first += len(turns)
    if roles is not None and any(turn.role not in roles for turn in trajectory.turns):
        _credit(rows)
    if rows and trajectory.finish_reason.cut_by_recipe:
        rows[-1] = replace(rows[-1], final_prompt_token_ids=list(trajectory.final_prompt_token_ids))
    return rows


def _images(turns: Sequence[Turn], files: Mapping[str, ImageFile]) -> Iterator[UnreadImage]:
    """Yield the images that the prompts of a sequence show."""
    before = 0
    for turn in turns:
        for image in turn.prompt_images:
            yield UnreadImage(before + image.start, image.num_tokens, files[image.sha256])
        before += len(turn.prompt_token_ids) + len(turn.response_token_ids)


def _sequence(
    turns: Sequence[Turn],
    rewards: Sequence[Sequence[float]] | None,
    name: str,
    *,
    first: int,
    staleness: int,
    roles: Collection[str] | None,
) -> TrainSequence:
    token_ids: list[int] = []
    loss_mask: list[bool] = []
    logprobs: list[float] = []
    token_rewards: list[float] = []
    spans: list[TurnSpan] = []
    for index, turn in enumerate(turns):
        num_prompt, num_response = len(turn.prompt_token_ids), len(turn.response_token_ids)
        turn_logprobs = turn.response_logprobs if turn.response_logprobs is not None else (0.0,) * num_response
        turn_rewards = rewards[index] if rewards is not None else (0.0,) * num_response
        if len(turn_logprobs) != num_response or len(turn_rewards) != num_response:
            raise ValueError(
                f"{name}, turn {first + index}: {num_response} response tokens, but {len(turn_logprobs)} "
                f"log-probabilities and {len(turn_rewards)} token rewards"
            )
        token_ids += [*turn.prompt_token_ids, *turn.response_token_ids]
        loss_mask += [False] * num_prompt + [roles is None or turn.role in roles] * num_response
        logprobs += [*([0.0] * num_prompt), *turn_logprobs]
        token_rewards += [*([0.0] * num_prompt), *turn_rewards]
        end = len(token_ids)
        state = _anchor(turn), turn.value, turn.node, turn.parent
        spans.append(TurnSpan(first + index, end - num_response, end, *state))
    return TrainSequence(token_ids, loss_mask, logprobs, token_rewards, staleness, name, turns=tuple(spans))


def _anchor(turn: Turn) -> str:
    """Return a name, unique within its task, of the state in which a turn was played."""
    if turn.state_key is not None:
        return turn.state_key
    seen = "\n".join([turn.observation, *(part.model_dump_json() for part in turn.parts)])
    return hashlib.blake2b(seen.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _credit(rows: Sequence[TrainSequence]) -> None:
    """Move rewards of tokens without a loss to the last earlier token with one; rewards before the first stay."""
    last: tuple[list[float], int] | None = None
    for row in rows:
        for place, reward in enumerate(row.token_rewards):
            if place > 0 and row.loss_mask[place]:
                last = row.token_rewards, place
            elif last is not None and reward:
                rewards, earlier = last
                rewards[earlier] += reward
                row.token_rewards[place] = 0.0


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Sequences placed end to end: T tokens in S segments, without padding.

    Everything about a token t (log-probability, advantage, value, return) is at index t, and is predicted
    from t - 1 in the same segment. `loss_mask` is False on each segment's first token.
    """

    tokens: Tensor
    """(T,) int64."""
    positions: Tensor
    """(T,) int64, from 0 in each segment; (3, T) in time, height and width where there are images."""
    cu_seqlens: Tensor
    """(S + 1,) int32, the start of each segment; the last entry is T."""
    loss_mask: Tensor
    """(T,) bool."""
    behaviour_logprobs: Tensor
    """(T,) float32, or wider if the model is."""
    lengths: tuple[int, ...]
    """The segments' lengths on the host, so that reading them needs no device synchronisation."""
    indices: tuple[int, ...]
    """The index of each segment among the packed sequences."""
    trained: Tensor
    """(N,) int64, the positions where `loss_mask` is True."""
    units: tuple[str | None, ...] = ()
    """The unit of each segment."""
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    """(T,) float each: the rows' fields, end to end, for the names that all of these rows have."""
    temperature: float = 1.0
    """The divisor of logits."""
    images: PackedImages | None = None
    """The images at image tokens; None where there are none."""
    shared: ModelInputs | None = None
    """The inputs of a model where rows share tokens, each of which it contains once."""

    @property
    def num_tokens(self) -> int:
        """Return T."""
        return sum(self.lengths)

    @property
    def num_computed(self) -> int:
        """Return how many tokens a model runs over: T, or fewer where rows share some."""
        return self.num_tokens if self.shared is None else sum(self.shared.segments.lengths)

    @property
    def inputs(self) -> ModelInputs:
        """Return the inputs of a model."""
        if self.shared is not None:
            return self.shared
        segments = Segments(self.lengths, self.cu_seqlens)
        targets = self.tokens[self.trained]
        return ModelInputs(
            self.tokens, self.positions, segments, self.trained - 1, targets, self.trained, images=self.images
        )

    def scattered(self, predicted: Tensor) -> Tensor:
        """Return (T,) values of all tokens, 0 where none is trained, from the (P,) predictions of the `inputs`."""
        values = predicted if self.shared is None else self.shared.of_trained(predicted)
        return values.new_zeros(self.num_tokens).index_copy(0, self.trained, values)

    def to(self, device: torch.device | str) -> "PackedBatch":
        """Return the batch on `device`."""
        moved: dict[str, Any] = {
            item.name: value.to(device, non_blocking=True)
            for item in fields(self)
            if isinstance(value := getattr(self, item.name), Tensor)
        }
        added = {name: value.to(device, non_blocking=True) for name, value in self.fields.items()}
        shared = None if self.shared is None else self.shared.to(device)
        images = None if self.images is None else self.images.to(device)
        return replace(self, **moved, fields=added, shared=shared, images=images)

    @property
    def places_by_unit(self) -> dict[str, tuple[int, ...]]:
        """Return the segments that belong together, in the order of the rows."""
        places: dict[str, list[int]] = {}
        for place, unit in enumerate(self.units):
            if unit is not None:
                places.setdefault(unit, []).append(place)
        return {unit: tuple(found) for unit, found in places.items()}


def pack(
    sequences: Sequence[TrainSequence],
    tokens_per_microbatch: int,
    *,
    multiple_of: int = 1,
    dtype: torch.dtype = torch.float32,
) -> list[PackedBatch]:
    """Distribute sequences over micro-batches of nearly equal size, none above `tokens_per_microbatch` tokens.

    First-fit-decreasing finds how many micro-batches are needed; then each sequence, longest first, goes to the
    emptiest one, with more micro-batches if necessary. If that overflows too, the result of first-fit is used.
    Sequences of one unit are placed as if they were one, and so are sequences that begin alike, as far as the limit and
    the number of workers allow: their common beginning counts once (see `trees.py`). A sequence longer than the limit
    gets its own micro-batch. With `multiple_of` workers there are that many micro-batches, or a multiple of it, if
    possible. No sequences give no micro-batches.
    """
    if tokens_per_microbatch < 1:
        raise ValueError(f"tokens_per_microbatch must be at least 1, not {tokens_per_microbatch}")
    parts = _parts(_trees(_units(sequences), sequences), tokens_per_microbatch, multiple_of)
    lengths = [part.size for part in parts]
    order = sorted(range(len(parts)), key=lambda place: (-lengths[place], place))
    bins = _first_fit(order, lengths, tokens_per_microbatch)
    needed = -(-len(bins) // multiple_of) * multiple_of
    for num_bins in (min(needed, len(parts)), needed + multiple_of):
        balanced = _emptiest_first(order, lengths, num_bins)
        if all(chosen and sum(lengths[i] for i in chosen) <= tokens_per_microbatch for chosen in balanced):
            bins = balanced
            break
    return [_pack_one(sequences, sorted(chain.from_iterable(parts[p].rows for p in chosen)), dtype) for chosen in bins]


def _units(sequences: Sequence[TrainSequence]) -> list[list[int]]:
    """Return the indices of sequences that must not be separated, in the order of the first of each unit."""
    units: dict[str | int, list[int]] = {}
    for index, sequence in enumerate(sequences):
        units.setdefault(index if sequence.unit is None else sequence.unit, []).append(index)
    return list(units.values())


class _Unit(NamedTuple):
    """Rows that stay together, after others that begin alike."""

    rows: list[int]
    size: int
    """The most tokens that they compute if they stand alone."""
    shared: int
    """How many of these, at least, the unit before already computes; 0 for the first of a tree."""


class _Part(NamedTuple):
    """Rows that go into one micro-batch as a whole."""

    rows: list[int]
    size: int


def _trees(units: Sequence[list[int]], sequences: Sequence[TrainSequence]) -> list[list[_Unit]]:
    """Return the units in trees of units that begin alike, with those that share the most next to each other."""
    sharing = _may_share(sequences)
    ordered = Ordered.of([sequences[unit[0]] for unit in units], sharing=sharing)
    trees: list[list[_Unit]] = []
    for place, common in zip(ordered.places, ordered.common, strict=True):
        own = Ordered.of([sequences[index] for index in units[place]], sharing=sharing)
        num_tokens = sum(len(sequences[index].token_ids) for index in units[place])
        unit = _Unit(units[place], num_tokens - sum(map(surely_shared, own.common)), surely_shared(common))
        if unit.shared:
            trees[-1].append(unit)
        else:
            trees.append([unit])
    return sorted(trees, key=lambda tree: tree[0].rows[0])


def _parts(trees: Sequence[list[_Unit]], limit: int, num_workers: int) -> list[_Part]:
    """Divide trees that are too large for a micro-batch, or for one worker while others would be idle."""
    num_tokens = sum(_size(tree) for tree in trees)
    num_batches = -(-num_tokens // (limit * num_workers)) * num_workers
    parts: list[_Part] = []
    for tree in trees:
        least = -(-_size(tree) * num_batches // num_tokens)  # of equal micro-batches, so many hold it
        pieces = _divided(tree, least)
        while len(pieces) < len(tree) and max(map(_size, pieces)) > limit:
            pieces = _divided(tree, len(pieces) + 1)
        parts += (_Part([index for unit in piece for index in unit.rows], _size(piece)) for piece in pieces)
    return parts


def _size(units: Sequence[_Unit]) -> int:
    """Return how many tokens consecutive units of a tree compute, the first unit as if it stood alone."""
    return units[0].size + sum(unit.size - unit.shared for unit in units[1:])


def _divided(tree: Sequence[_Unit], number: int) -> list[list[_Unit]]:
    """Return a tree in `number` parts, the largest of which is as small as possible."""
    smallest = bisect_left(range(_size(tree)), x=True, key=lambda limit: len(_filled(tree, limit, 1)) <= number)
    return _filled(tree, smallest, number)


def _filled(tree: Sequence[_Unit], limit: int, least: int) -> list[list[_Unit]]:
    """Return a tree in parts that are filled up to the limit one after the other; there are at least `least` parts."""
    parts: list[list[_Unit]] = []
    size = 0
    for place, unit in enumerate(tree):
        size += unit.size - unit.shared
        if not parts or size > limit or len(tree) - place <= least - len(parts):
            parts.append([])
            size = unit.size
        parts[-1].append(unit)
    return parts


def _first_fit(order: list[int], lengths: list[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    room: list[int] = []
    for index in order:
        place = next((b for b, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            place = len(bins)
            bins.append([])
            room.append(capacity)
        bins[place].append(index)
        room[place] -= lengths[index]
    return bins


def _emptiest_first(order: list[int], lengths: list[int], num_bins: int) -> list[list[int]]:
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    sizes = [0] * num_bins
    for index in order:
        place = sizes.index(min(sizes))
        bins[place].append(index)
        sizes[place] += lengths[index]
    return bins


def _pack_one(sequences: Sequence[TrainSequence], chosen: list[int], dtype: torch.dtype) -> PackedBatch:
    segments = [sequences[index] for index in chosen]
    lengths = tuple(len(segment.token_ids) for segment in segments)
    starts = [0, *accumulate(lengths)]
    loss_mask = torch.tensor(list(chain.from_iterable(s.loss_mask for s in segments)), dtype=torch.bool)
    loss_mask[torch.tensor(starts[:-1])] = False
    trained = loss_mask.nonzero().flatten()
    images = packed_images([segment.seen for segment in segments], starts[:-1])
    return PackedBatch(
        tokens=torch.tensor(list(chain.from_iterable(s.token_ids for s in segments)), dtype=torch.int64),
        positions=torch.tensor(list(chain.from_iterable(map(range, lengths))), dtype=torch.int64)
        if images is None
        else torch.cat([positions_of(len(one.token_ids), one.seen) for one in segments], dim=1),
        cu_seqlens=torch.tensor(starts, dtype=torch.int32),
        loss_mask=loss_mask,
        behaviour_logprobs=_floats((s.behaviour_logprobs for s in segments), dtype),
        lengths=lengths,
        indices=tuple(chosen),
        trained=trained,
        units=tuple(segment.unit for segment in segments),
        fields={name: torch.cat([segment.fields[name] for segment in segments]) for name in _shared_names(segments)},
        images=images,
        shared=shared_inputs(segments, trained) if _may_share(sequences) else None,
    )


def _may_share(sequences: Sequence[TrainSequence]) -> bool:
    """Return whether equal tokens can be shared: not where some of them stand for images."""
    return not any(sequence.images for sequence in sequences)


def _shared_names(segments: Sequence[TrainSequence]) -> list[str]:
    names = set(segments[0].fields).intersection(*(segment.fields for segment in segments))
    return sorted(names)


def _floats(rows: Iterable[list[float]], dtype: torch.dtype) -> Tensor:
    return torch.tensor(list(chain.from_iterable(rows)), dtype=dtype)
