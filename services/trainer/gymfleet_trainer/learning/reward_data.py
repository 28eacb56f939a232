"""What a reward model learns from: episodes as it reads them, pairs of one task, and labels of turns."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal, NamedTuple, Self, TypeAlias, TypeVar

import torch
from gymfleet_contracts.trajectory import ScoredTrajectory, Turn
from gymfleet_kit.chat.transcripts import BadTranscript, Transcript, Transcripts

from gymfleet_trainer.learning.options import RewardModelOptions
from gymfleet_trainer.learning.pairs import task_name
from gymfleet_trainer.learning.reward_update import LABELS
from gymfleet_trainer.model.batching import TrainSequence

Labels: TypeAlias = Literal["outcome", "soft", "hard", "values"]
TreeNode: TypeAlias = tuple[str, str, str]
"""A run, one of its groups, and a node of that group's tree: two runs may name groups and nodes alike."""


@dataclass(frozen=True, slots=True)
class Example:
    """An episode as a reward model reads it."""

    scored: ScoredTrajectory
    transcript: Transcript
    reward: float

    @property
    def name(self) -> str:
        """Return the episode's id."""
        return self.scored.trajectory.trajectory_id

    @property
    def num_tokens(self) -> int:
        """Return the transcript's length."""
        return len(self.transcript.ids)

    def row(self, *, unit: str | None = None, labels: Sequence[float | None] = ()) -> TrainSequence:
        """Return the row whose mask says where numbers are read: at the turns' ends, or else at the last token.

        With `labels`, one for each turn, numbers are read where there is one.
        """
        length = self.num_tokens
        nothing = [0.0] * length
        ends = self.transcript.ends or (length - 1,)
        given = dict(zip(ends, labels, strict=True)) if labels else dict.fromkeys(ends, 0.0)
        known = {end: label for end, label in given.items() if label is not None}
        mask = [False] * length
        for end in known:
            mask[end] = True
        row = TrainSequence(list(self.transcript.ids), mask, nothing, nothing, 0, self.name, unit=unit)
        if not labels:
            return row
        values = torch.zeros(length)
        values[list(known)] = torch.tensor([*known.values()])
        return row.with_fields(**{LABELS: values})


class Pair(NamedTuple):
    """Two episodes of one task."""

    chosen: Example
    rejected: Example

    @property
    def name(self) -> str:
        """Return the ids of both, the better one's first."""
        return f"{self.chosen.name}>{self.rejected.name}"

    def rows(self) -> list[TrainSequence]:
        """Return the rows of both, the better one first, as one unit."""
        return [self.chosen.row(unit=self.name), self.rejected.row(unit=self.name)]


LearnedT = TypeVar("LearnedT", Example, Pair)


@dataclass
class Examples:
    """Episodes by their tasks, and how many were left out for which reason."""

    tasks: dict[str, list[Example]] = field(default_factory=lambda: defaultdict(list))
    left_out: Counter[str] = field(default_factory=Counter)


def read_examples(
    episodes: Iterable[ScoredTrajectory], transcripts: Transcripts, options: RewardModelOptions, max_tokens: int
) -> Examples:
    """Return episodes as the model reads them, each once: those of at most `max_tokens` that have a reward."""
    found = Examples()
    seen: set[str] = set()
    for scored in episodes:
        name = scored.trajectory.trajectory_id
        if scored.reward is None:
            found.left_out["unscored"] += 1
            continue
        if name in seen:
            found.left_out["repeated"] += 1
            continue
        seen.add(name)
        try:
            written = transcripts.whole if options.reads == "episode" else transcripts.by_turns
            transcript = written(scored.trajectory)
        except BadTranscript:
            found.left_out["unreadable"] += 1
            continue
        if len(transcript.ids) > max_tokens:
            found.left_out["too_long"] += 1
            continue
        found.tasks[task_name(scored.trajectory.task)].append(Example(scored, transcript, scored.reward.total))
    return found


def pairs_of(examples: Sequence[Example], options: RewardModelOptions) -> list[Pair]:
    """Return the pairs of one task's episodes: those of them that are drawn, which depends on their names alone."""
    found = []
    for one, other in combinations(examples, 2):
        chosen, rejected = (one, other) if one.reward > other.reward else (other, one)
        lengths = sorted((one.num_tokens, other.num_tokens))
        apart = options.max_length_ratio is not None and lengths[1] > options.max_length_ratio * lengths[0]
        if chosen.reward - rejected.reward >= options.min_gap and not apart:
            found.append(Pair(chosen, rejected))
    found.sort(key=lambda pair: _draw(pair.name))
    return found[: options.max_pairs_per_task]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has to learn from, by task."""

    tasks: Mapping[str, Sequence[Example]]
    pairs: Mapping[str, Sequence[Pair]]

    @classmethod
    def of(cls, tasks: Mapping[str, Sequence[Example]], options: RewardModelOptions) -> Self:
        """Return the round of these examples."""
        return cls(tasks, {task: pairs_of(examples, options) for task, examples in tasks.items()})

    def examples_of(self, tasks: Collection[str]) -> list[Example]:
        """Return the examples of those tasks that it has, in an order that is always the same."""
        return [example for task in sorted(tasks) for example in self.tasks.get(task, ())]

    def pairs_of(self, tasks: Collection[str]) -> list[Pair]:
        """Return their pairs, likewise."""
        return [pair for task in sorted(tasks) for pair in self.pairs.get(task, ())]


def held_out_of(rounds: Iterable[Round], share: float) -> set[str]:
    """Return which tasks of all rounds are held out: what the first round with a task says of it holds for the others.

    Tasks with pairs and those without are divided each by themselves.
    """
    out: set[str] = set()
    seen: set[str] = set()
    for one in rounds:
        with_pairs = {task for task, pairs in one.pairs.items() if pairs}
        for tasks in (with_pairs, one.tasks.keys() - with_pairs):
            out |= held_out_tasks(tasks, share, out=out, trained=seen - out)
        seen |= one.tasks.keys()
    return out


def held_out_tasks(
    tasks: Collection[str],
    share: float,
    *,
    out: AbstractSet[str] = frozenset(),
    trained: AbstractSet[str] = frozenset(),
) -> set[str]:
    """Return which tasks are held out: always the same, and at least one where any is to be and more than one is there.

    A task of the share is chosen by its name, whatever the others are called; of what is held `out` or `trained` on
    already, nothing is chosen anew.
    """
    kept = set(tasks) & out
    ranked = sorted(set(tasks) - out - trained, key=_draw)
    wanted = max(round(share * len(tasks)), int(share > 0 and len(tasks) > 1)) - len(kept)
    return kept | set(ranked[: max(wanted, 0)])


def replayed(found: Iterable[LearnedT], own: Iterable[LearnedT], count: int, seed: str) -> list[LearnedT]:
    """Return `count` of what earlier rounds learned from, or all of it: drawn by names and seed, each once.

    What is among this round's `own` is left out: a file may be the data of all rounds.
    """
    present = {one.name for one in own}
    others = {one.name: one for one in found if one.name not in present}
    return [others[name] for name in sorted(others, key=lambda name: _draw(f"{seed}/{name}"))[:count]]


def values_of_nodes(episodes: Iterable[ScoredTrajectory]) -> dict[TreeNode, list[bool]]:
    """Return how the episodes ended that went through each node of each group's tree."""
    found: dict[TreeNode, list[bool]] = defaultdict(list)
    for scored in episodes:
        trajectory = scored.trajectory
        for turn in trajectory.turns:
            if turn.node is not None:
                found[trajectory.run_id, trajectory.group_id, turn.node].append(trajectory.success)
    return found


def turn_labels(scored: ScoredTrajectory, labels: Labels, nodes: Mapping[TreeNode, Sequence[bool]]) -> list[float]:
    """Return what each turn's number is to be: how likely the task is solved behind it.

    `outcome`: whether the episode solved it (arXiv:2211.14275). Where continuations were forked behind a turn: `soft`,
    the share of them that did; `hard`, whether any did (Math-Shepherd, arXiv:2312.08935, eq. 3 and 4).
    """
    trajectory = scored.trajectory

    def label(turn: Turn) -> float:
        ended = [trajectory.success]
        if labels != "outcome" and turn.node is not None:
            ended = list(nodes[trajectory.run_id, trajectory.group_id, turn.node])
        return float(any(ended)) if labels == "hard" else sum(ended) / len(ended)

    return [label(turn) for turn in trajectory.turns]


def value_labels(scored: ScoredTrajectory, lowest: float, highest: float) -> list[float | None]:
    """Return what a search said of the node behind each turn, from 0 for `lowest` to 1 for `highest`; or None.

    Raises ValueError for a value outside of the two.
    """
    trajectory = scored.trajectory

    def label(turn: Turn) -> float | None:
        if (value := turn.node_value) is None:
            return None
        if not lowest <= value <= highest:
            raise ValueError(f"{trajectory.trajectory_id}: node {turn.node} has the value {value:g}")
        return (value - lowest) / (highest - lowest)

    return [label(turn) for turn in trajectory.turns]


def _draw(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()
