"""The choice of the tasks of a measurement that get another episode from a budget that they share.

A task that needs no further attempt takes nothing more, and its share goes to tasks that look solvable: the
compute-optimal allocation by difficulty of Snell et al. (arXiv:2408.03314), with the difficulty estimated on the way.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from gymfleet_contracts.numbers import NUMBER
from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1), NUMBER]


class AllocationOptions(BaseModel):
    """How the tasks of a measurement share a budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_calls: Count
    """Replies that all tasks together may take. The unused rest at the end is less than one episode may take."""
    wave: Annotated[int, Field(ge=1, le=512), NUMBER] = 32
    """Episodes that are played between two decisions, at most one of each task."""
    most: Count = 32
    """Maximum number of episodes of a task."""
    enough: Annotated[float, Field(gt=0), NUMBER] = 1.0
    """The value that `[rollout.evaluator]` must give an episode for its task to take no further one. A lower value
    counts as that share of a success, and a value below 0 as none."""
    successes: Annotated[float, Field(gt=0), NUMBER] = 1.0
    """Of the Beta prior of a task's chance: as if the task had been solved this often before."""
    failures: Annotated[float, Field(gt=0), NUMBER] = 1.0
    """Of the same prior: as if the task had been failed this often before."""
    gives_up: Annotated[float, Field(ge=0, lt=1), NUMBER] = 0.0
    """A task whose expected chance is below this takes no further episode; the rest of the budget stays unspent."""


@dataclass(slots=True)
class _Tried:
    """The record of a task so far."""

    longest: int
    """Replies that an episode of the task may take."""
    tie: float
    episodes: int = 0
    calls: int = 0
    solved: float = 0.0
    """Sum of the shares of a success."""
    best: float = 0.0

    @property
    def expected_calls(self) -> float:
        """Return the replies that the task's next episode is expected to take."""
        return self.calls / self.episodes if self.episodes else float(self.longest)


class Allocator:
    r"""Spend a budget of replies on the tasks with the best chance of a first success per reply.

    The chance of task i has a Beta prior, and after n episodes with shares of a success v the mean

    .. math:: m_i = \frac{\alpha + \sum v}{\alpha + \beta + n}

    Every task is played once. Then the next wave goes to the open tasks with the highest :math:`m_i / c_i`, where c is
    the mean number of replies of an episode. Each failure lowers m, so that taking the highest first is best (by
    exchange). Equal tasks are ordered by a permutation drawn from the seed.

    Args:
        longest: the most replies that an episode of each task may take.
        options: the budget and the prior.
        seed: the seed of the permutation.
    """

    def __init__(self, longest: Sequence[int], options: AllocationOptions, seed: str) -> None:
        drawn = random.Random(seed)
        self._options = options
        self._tasks = [_Tried(most, drawn.random()) for most in longest]
        self.spent = 0
        """Replies so far."""

    def next(self) -> list[int]:
        """Return the tasks to play once more, the best first; none if the budget or the tasks are exhausted.

        All of them together cannot exceed the budget. Report their episodes with `played` before asking again.
        """
        open_ones = [place for place in range(len(self._tasks)) if self._is_open(place)]
        ranked = sorted(open_ones, key=self._rank)
        left = self._options.model_calls - self.spent
        wave: list[int] = []
        for place in ranked[: self._options.wave]:
            if (left := left - self._tasks[place].longest) < 0:
                break
            wave.append(place)
        return wave

    def played(self, task: int, value: float, calls: int) -> None:
        """Count an episode of a task, and its value."""
        known = self._tasks[task]
        known.episodes += 1
        known.calls += calls
        known.solved += min(max(value / self._options.enough, 0.0), 1.0)
        known.best = max(known.best, value)
        self.spent += calls

    def chance(self, task: int) -> float:
        """Return the expected chance that the next episode solves a task."""
        known, options = self._tasks[task], self._options
        return (options.successes + known.solved) / (options.successes + options.failures + known.episodes)

    def index(self, task: int) -> float:
        """Return that chance per expected reply."""
        return self.chance(task) / self._tasks[task].expected_calls

    def _is_open(self, task: int) -> bool:
        known, options = self._tasks[task], self._options
        if not known.episodes:
            return True
        return known.best < options.enough and known.episodes < options.most and self.chance(task) >= options.gives_up

    def _rank(self, task: int) -> tuple[bool, float, float]:
        known = self._tasks[task]
        return known.episodes > 0, -self.index(task), known.tie
