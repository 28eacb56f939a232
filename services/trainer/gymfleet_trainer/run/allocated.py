"""Play the tasks of a measurement as often as an allocation decides, wave by wave."""

from collections.abc import Sequence

from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.run.allocation import AllocationOptions, Allocator
from gymfleet_trainer.run.groups import Group, is_failure
from gymfleet_trainer.run.playing import Playing, Wanted, is_current


class Allocated(Playing):
    """Episodes that share a budget. Each is a separate group, numbered like the replacements of its task.

    A wave is requested when the previous one is over, so that the requests do not depend on the order of arrival.
    """

    def __init__(self, wanted: Wanted, options: AllocationOptions) -> None:
        super().__init__(wanted)
        tasks = range(self._num_groups)
        requests = (self._planner.play(self._prefix, self._plays, index, 0, 1) for index in tasks)
        longest = [request.limits.max_turns for request in requests]
        self._allocator = Allocator(longest, options, f"{wanted.recipe.seed}/{self._prefix}")
        self._numbers = dict.fromkeys(range(len(longest)), -1)
        """Number of the last episode that was requested, by task."""
        self._wave = self._allocator.next()

    @property
    def open(self) -> bool:
        """Return whether episodes are still wanted."""
        return bool(self._again or self._asked or self._wave)

    def _due(self) -> list[GroupRequest]:
        requests, self._again = self._again, []
        wave, self._wave = self._wave, []
        return [*requests, *(self._request(task, self._numbers[task] + 1, 1) for task in wave)]

    def _take(self, group: Group) -> None:
        task, _ = self._asked[group.group_id]
        before = len(self._counted)
        super()._take(group)
        for _, scored in self._counted[before:]:
            self._allocator.played(task, value_of(scored), len(scored.trajectory.turns))
        if not (self._asked or self._again):
            self._wave = self._allocator.next()

    def _counts(self, scored: ScoredTrajectory) -> bool:
        return not is_failure(scored) and is_current(scored, self._state)  # without a value nothing can be decided

    def _request(self, index: int, replacement: int, samples: int) -> GroupRequest:
        self._numbers[index] = replacement
        return super()._request(index, replacement, samples)


def value_of(scored: ScoredTrajectory) -> float:
    """Return the evaluator's value of an episode. Raises ValueError if there is none."""
    if scored.reward is None:
        raise ValueError(f"{scored.trajectory.trajectory_id} has no value: {scored.reward_error}")
    return scored.reward.total


def best_of_each(episodes: Sequence[ScoredTrajectory], tasks: Sequence[int]) -> list[ScoredTrajectory]:
    """Return each task's episode with the highest value (the first of equal ones), in the order of the tasks.

    Args:
        episodes: the episodes of all tasks, those of each task in the order in which they were played.
        tasks: the number of each episode's task.
    """
    best: dict[int, ScoredTrajectory] = {}
    for task, scored in zip(tasks, episodes, strict=True):
        if task not in best or value_of(scored) > value_of(best[task]):
            best[task] = scored
    return [best[task] for task in sorted(best)]
