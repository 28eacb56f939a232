"""A reward model's training data: episodes as the model reads them, pairs of one task, and labels of turns."""

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
        """Return the row, whose mask marks where numbers are read: at the turns' ends, or else at the last token.

        With `labels`, one for each turn, numbers are read only where the label is not None.
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
    """Episodes by task, and how many were left out, by reason."""

    tasks: dict[str, list[Example]] = field(default_factory=lambda: defaultdict(list))
    left_out: Counter[str] = field(default_factory=Counter)
    unread: list[ScoredTrajectory] = field(default_factory=list)
    """Those that are left out because the model cannot read them; how they ended is known all the same."""


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
            found.unread.append(scored)
            continue
        if len(transcript.ids) > max_tokens:
            found.left_out["too_long"] += 1
            found.unread.append(scored)
            continue
        found.tasks[task_name(scored.trajectory.task)].append(Example(scored, transcript, scored.reward.total))
    return found


def pairs_of(examples: Sequence[Example], options: RewardModelOptions) -> list[Pair]:
    """Return the pairs that are drawn from one task's episodes; the draw depends on their names alone."""
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
    """The training data of one round, by task."""

    tasks: Mapping[str, Sequence[Example]]
    pairs: Mapping[str, Sequence[Pair]]

    @classmethod
    def of(cls, tasks: Mapping[str, Sequence[Example]], options: RewardModelOptions) -> Self:
        """Return the round of these examples."""
        return cls(tasks, {task: pairs_of(examples, options) for task, examples in tasks.items()})

    def examples_of(self, tasks: Collection[str]) -> list[Example]:
        """Return the round's examples of these tasks, always in the same order."""
        return [example for task in sorted(tasks) for example in self.tasks.get(task, ())]

    def pairs_of(self, tasks: Collection[str]) -> list[Pair]:
        """Return the round's pairs of these tasks, always in the same order."""
        return [pair for task in sorted(tasks) for pair in self.pairs.get(task, ())]


def held_out_of(rounds: Iterable[Round], share: float) -> set[str]:
    """Return the held-out tasks of all rounds; the first round that has a task decides for all later rounds.

    Tasks with pairs and tasks without are divided separately.
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
    """Return the held-out tasks: always the same, and at least one if the share is above 0 and there are several tasks.

    Tasks are chosen by their names, whatever the names of the others; tasks that are already held `out` or `trained` on
    are not chosen again.
    """
    kept = set(tasks) & out
    ranked = sorted(set(tasks) - out - trained, key=_draw)
    wanted = max(round(share * len(tasks)), int(share > 0 and len(tasks) > 1)) - len(kept)
    return kept | set(ranked[: max(wanted, 0)])


def replayed(found: Iterable[LearnedT], own: Iterable[LearnedT], count: int, seed: str) -> list[LearnedT]:
    """Return `count` of the items that earlier rounds learned from, or all: drawn by names and seed, each once.

    Items among this round's `own` are left out: one file may be the data of all rounds.
    """
    present = {one.name for one in own}
    others = {one.name: one for one in found if one.name not in present}
    return [others[name] for name in sorted(others, key=lambda name: _draw(f"{seed}/{name}"))[:count]]


def values_of_nodes(episodes: Iterable[ScoredTrajectory]) -> dict[TreeNode, list[bool]]:
    """Return, for each node of each group's tree, whether each episode that went through it succeeded."""
    found: dict[TreeNode, list[bool]] = defaultdict(list)
    for scored in episodes:
        trajectory = scored.trajectory
        for turn in trajectory.turns:
            if turn.node is not None:
                found[trajectory.run_id, trajectory.group_id, turn.node].append(trajectory.success)
    return found


def turn_labels(scored: ScoredTrajectory, labels: Labels, nodes: Mapping[TreeNode, Sequence[bool]]) -> list[float]:
    """Return the target of each turn's number: how likely the task is solved after it.

    `outcome`: whether the episode solved it (arXiv:2211.14275). Where continuations were forked after a turn: `soft`,
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
    """Return a search's value of the node after each turn, from 0 for `lowest` to 1 for `highest`; or None.

    Raises ValueError for a value outside this range.
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
