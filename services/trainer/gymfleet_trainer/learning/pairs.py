"""Pairs: two ways to continue from the same point of a task, one of which is preferred.

They come from episodes of the same task whose rewards differ, from turns of a tree that continue from the same node, or
from files. The common beginning of both sides is their prompt, which has no loss.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations, takewhile
from typing import Annotated, Final, Literal

import torch
from gymfleet_contracts.session import TaskRef
from pydantic import Field, PositiveFloat, PositiveInt

from gymfleet_trainer.learning.algorithm import AlgorithmOptions, Sample
from gymfleet_trainer.model.batching import TrainSequence, sequences_from_trajectory

PREFERRED: Final = "preferred"
"""The field of a pair's rows that is 1 on the tokens of the chosen side and 0 on those of the rejected one."""


class PairOptions(AlgorithmOptions):
    """Options for choosing the pairs among a task's episodes."""

    level: Literal["episodes", "steps", "valued_steps"] = "episodes"
    """What is compared: whole episodes of a task, by their rewards; or, where a strategy branched, the single turns
    (`steps`) that continue from the same node, by the mean reward of the episodes that continue from each.
    `valued_steps` compares such turns by a search's values of the nodes they lead to, without turns that have none."""
    min_gap: PositiveFloat = 0.01
    """The minimum by which the chosen side must be better."""
    min_chosen_reward: Annotated[float, Field(allow_inf_nan=False)] = 0.7
    """The minimum reward, or value, of the chosen side."""
    max_pairs_per_task: PositiveInt = 1
    """Maximum number of pairs per task, those with the widest gaps first: 1 is the best against the worst."""


class LeftOut(StrEnum):
    """The reason why something is in no pair."""

    UNSCORED = "unscored"
    """Episodes without a reward."""
    ALONE = "alone"
    """Tasks with one episode, or, for steps, without a node from which several turns continue."""
    NO_GAP = "no_gap"
    """Pairs whose rewards differ by less than `min_gap`."""
    TOO_LOW = "too_low"
    """Pairs whose better side has less than `min_chosen_reward`."""
    OTHER_PROMPT = "other_prompt"
    """Pairs whose sides reply to different prompts: with another format, template or hint, the contexts differ."""
    SAME_REPLIES = "same_replies"
    """Pairs in which one side has no reply tokens beyond the common beginning."""
    OVER_MAX = "over_max"
    """Pairs beyond `max_pairs_per_task`."""
    TOO_LONG = "too_long"
    """Pairs from files that do not fit into the model's context."""


class DifferentTasks(ValueError):
    """Two sides belong to different tasks, so that comparing them teaches nothing."""


@dataclass(frozen=True, slots=True)
class Side:
    """A candidate for one side of a pair: rows in order, several where the context was replaced."""

    task: str
    name: str
    reward: float
    rows: tuple[TrainSequence, ...]
    prompt: tuple[int, ...] = ()
    """The prompt that it replies to; set only for sides that come from episodes."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides of one task. Only reply tokens after their common beginning have a loss."""

    name: str
    """Unique among pairs of the same episodes, or of the same file."""
    task: str
    """The same for the same task; "" where a file does not name it."""
    chosen: tuple[TrainSequence, ...]
    rejected: tuple[TrainSequence, ...]
    num_shared: int
    """Number of tokens in the common beginning of both sides' first rows."""
    gap: float | None = None
    """The difference of the rewards; None where a file states only which side is preferred."""

    def rows(self) -> list[TrainSequence]:
        """Return the rows of both sides as one unit, the chosen ones first, with the field `PREFERRED`."""
        return [
            replace(row, unit=self.name).with_fields(**{PREFERRED: torch.full((len(row.token_ids),), value)})
            for value, rows in ((1.0, self.chosen), (0.0, self.rejected))
            for row in rows
        ]


@dataclass
class Found:
    """Pairs, and how much was left out, by reason."""

    pairs: list[Pair] = field(default_factory=list)
    left_out: Counter[LeftOut] = field(default_factory=Counter)


def task_name(task: TaskRef) -> str:
    """Return a name that is the same for the same task at the same level, with the same seed."""
    return f"{task.env}/{task.level}/{task.split}/{task.task_id}/{task.seed}"


def find_pairs(samples: Sequence[Sample], options: PairOptions) -> Found:
    """Return the pairs among episodes by AgentGym's rule: the same task, a wide enough gap, a good enough winner.

    Tasks are in the order of their first episodes, and the pairs of each task in the order of their gaps.
    """
    found = Found()
    tasks: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.scored.reward is None:
            found.left_out[LeftOut.UNSCORED] += 1
        else:
            tasks[task_name(sample.scored.trajectory.task)].append(sample)
    for of_task in tasks.values():
        contests = list(_episodes(of_task) if options.level == "episodes" else _siblings(of_task, options.level))
        if not any(len(sides) > 1 for sides in contests):
            found.left_out[LeftOut.ALONE] += 1
        _pair_up(contests, options, found)
    return found


def pair_of(chosen: Side, rejected: Side, *, gap: float | None = None) -> Pair | None:
    """Return a pair, or None if one side has no reply tokens beyond the common beginning.

    Raises DifferentTasks.
    """
    if chosen.task != rejected.task:
        raise DifferentTasks(
            f"{chosen.name} and {rejected.name} are no pair: they are of different tasks, {chosen.task} and "
            f"{rejected.task}"
        )
    name = f"{chosen.name}>{rejected.name}"
    better, worse = list(chosen.rows), [_in_group(row, chosen.rows[0], rejected.name) for row in rejected.rows]
    num_shared = 0
    for place, (one, other) in enumerate(zip(better, worse, strict=False)):
        size = _shared(one, other)
        num_shared = num_shared or size
        better[place], worse[place] = (_behind(row, size) for row in (one, other))
        if one.token_ids != other.token_ids:
            break
    sides = [tuple(row for row in rows if row.num_trained) for rows in (better, worse)]
    if not all(sides):
        return None
    return Pair(name, chosen.task, sides[0], sides[1], num_shared, gap)


def _episodes(samples: Iterable[Sample]) -> Iterator[list[Side]]:
    """Yield the episodes of a task, all of which are compared with each other."""
    yield [
        Side(
            task_name(trajectory.task), trajectory.trajectory_id, sample.scored.reward.total,
            tuple(sequences_from_trajectory(sample.scored, staleness=sample.staleness, roles=sample.roles)),
            trajectory.turns[0].prompt_token_ids,
        )
        for sample in samples
        if sample.scored.reward is not None and (trajectory := sample.scored.trajectory).turns
    ]  # fmt: skip


def _siblings(samples: Sequence[Sample], level: Literal["steps", "valued_steps"]) -> Iterator[list[Side]]:
    """Yield, for each node, the turns that continue from it, each as a row that ends with it and trains it alone."""
    first: dict[tuple[str, str, str], tuple[Sample, int]] = {}
    rewards: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    children: dict[tuple[str, str, str | None], dict[tuple[str, str, str], None]] = defaultdict(dict)
    for sample in samples:
        trajectory = sample.scored.trajectory
        for place, turn in enumerate(trajectory.turns):
            worth = turn.node_value if level == "valued_steps" else _total(sample)
            if turn.node is None or worth is None:
                continue
            tree = (trajectory.run_id, trajectory.group_id)  # two runs may name groups and nodes alike
            node = (*tree, turn.node)
            first.setdefault(node, (sample, place))
            rewards[node].append(worth)
            children[*tree, turn.parent][node] = None
    for nodes in children.values():
        if len(nodes) > 1:
            yield [_step(*first[node], sum(rewards[node]) / len(rewards[node])) for node in nodes]


def _total(sample: Sample) -> float | None:
    return None if sample.scored.reward is None else sample.scored.reward.total


def _step(sample: Sample, place: int, reward: float) -> Side:
    """Return the row that ends with the turn at `place` of an episode."""
    trajectory = sample.scored.trajectory
    rows = sequences_from_trajectory(sample.scored, staleness=sample.staleness, roles=sample.roles)
    begin = 0
    for row, turns in zip(rows, trajectory.sequences(), strict=True):
        if place < begin + len(turns):
            until = turns[: place - begin + 1]
            end = sum(len(turn.prompt_token_ids) + len(turn.response_token_ids) for turn in until)
            start = end - len(until[-1].response_token_ids)
            name, cut = f"{trajectory.trajectory_id}:{place}", _cut(row, start, end)
            return Side(task_name(trajectory.task), name, reward, (cut,), tuple(row.token_ids[:start]))
        begin += len(turns)
    raise IndexError(f"{trajectory.trajectory_id} has no turn {place}")


def _cut(row: TrainSequence, start: int, end: int) -> TrainSequence:
    """Return the first `end` tokens of a row, with a loss only from `start` on."""
    return replace(
        row,
        token_ids=row.token_ids[:end],
        loss_mask=[False] * start + row.loss_mask[start:end],
        behaviour_logprobs=row.behaviour_logprobs[:end],
        token_rewards=row.token_rewards[:end],
        final_prompt_token_ids=None,
        fields={name: values[:end] for name, values in row.fields.items()},
        turns=tuple(takewhile(lambda span: span.end <= end, row.turns)),
        images=tuple(takewhile(lambda image: image.end <= end, row.images)),
    )


def _pair_up(contests: Sequence[Sequence[Side]], options: PairOptions, found: Found) -> None:
    """Add the pairs of one task."""
    ranked: list[tuple[float, Side, Side]] = []
    for one, other in (two for sides in contests for two in combinations(sides, 2)):
        better, worse = (one, other) if one.reward >= other.reward else (other, one)
        gap = better.reward - worse.reward
        if gap < options.min_gap:
            found.left_out[LeftOut.NO_GAP] += 1
        elif better.reward < options.min_chosen_reward:
            found.left_out[LeftOut.TOO_LOW] += 1
        elif better.prompt != worse.prompt:
            found.left_out[LeftOut.OTHER_PROMPT] += 1
        else:
            ranked.append((gap, better, worse))
    pairs: list[Pair] = []
    for gap, better, worse in sorted(ranked, key=lambda one: -one[0]):
        if len(pairs) == options.max_pairs_per_task:
            found.left_out[LeftOut.OVER_MAX] += 1
        elif (pair := pair_of(better, worse, gap=gap)) is None:
            found.left_out[LeftOut.SAME_REPLIES] += 1
        else:
            pairs.append(pair)
    found.pairs += pairs


def _in_group(row: TrainSequence, chosen: TrainSequence, name: str) -> TrainSequence:
    """Return a rejected row under the group of the chosen one, because rows of one group stay in one update."""
    if row.group_id == chosen.group_id:
        return row
    return replace(row, trajectory_id=f"{chosen.group_id}/{name.replace('/', '.')}")


def _shared(one: TrainSequence, other: TrainSequence) -> int:
    """Return how many leading tokens two rows share, up to the beginning of the reply in which they diverge."""
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    size = sum(1 for _ in takewhile(lambda both: both[0] == both[1], pairs))
    rows = [row for row in (one, other) if size < len(row.token_ids) and row.loss_mask[size]]
    while size > 0 and any(row.loss_mask[size - 1] for row in rows):
        size -= 1
    return size


def _behind(row: TrainSequence, size: int) -> TrainSequence:
    """Return a row without a loss on its first `size` tokens."""
    return replace(row, loss_mask=[False] * size + row.loss_mask[size:]) if size else row
