"""Play the episodes that a stage wants outside of training, and play failed ones again."""

from dataclasses import dataclass
from typing import ClassVar

import structlog
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.trajectory import ScoredTrajectory

from gymfleet_trainer.errors import TooManyFailures
from gymfleet_trainer.run.collect import Collector
from gymfleet_trainer.run.group_planner import GroupPlanner
from gymfleet_trainer.run.groups import Group, is_failure
from gymfleet_trainer.run.run_directory import RunDirectory
from gymfleet_trainer.run.state import RunState
from gymfleet_trainer.stage import Plays

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wanted:
    """The episodes to play, and the parts of the run that play them."""

    recipe: Recipe
    state: RunState
    collector: Collector
    directory: RunDirectory
    planner: GroupPlanner
    prefix: str
    """The ids of the groups begin with it."""
    plays: Plays
    max_replacements: int


class Playing:
    """The episodes that are still wanted, and those that count, in the order of their tasks.

    Episodes that failed for technical reasons, or were partly sampled from other
    weights, are played again: neither kind says anything about this policy.
    """

    MAX_OPEN: ClassVar = 512
    """Groups that are requested at a time."""

    def __init__(self, wanted: Wanted) -> None:
        self._state = wanted.state
        self._collector = wanted.collector
        self._directory = wanted.directory
        self._planner = wanted.planner
        self._prefix = wanted.prefix
        self._plays = wanted.plays
        self._max_replacements = wanted.max_replacements
        self._num_groups = wanted.plays.num_groups(wanted.recipe)
        self._next = 0
        self._again: list[GroupRequest] = []
        self._asked: dict[str, tuple[int, int]] = {}
        self._failed_in_a_row = 0
        """Number of groups in a row in which no episode could be counted."""
        self._last_failure = ""
        self._counted: list[tuple[int, ScoredTrajectory]] = []
        self.num_failed = 0
        """Episodes that failed for technical reasons."""
        self.env_steps = 0
        """All environment steps taken, including those of failures and of episodes that searches did not choose."""

    @property
    def counted(self) -> list[ScoredTrajectory]:
        """Return the episodes that count, in the order of their tasks, whichever ended first."""
        return [scored for _, scored in sorted(self._counted, key=lambda one: (one[0], one[1].trajectory.sample))]

    @property
    def num_counted(self) -> int:
        """Return how many episodes count."""
        return len(self._counted)

    @property
    def num_successes(self) -> int:
        """Return how many of the counted episodes solved their task."""
        return sum(scored.trajectory.success for _, scored in self._counted)

    @property
    def open(self) -> bool:
        """Return whether episodes are still wanted."""
        return bool(self._again or self._asked) or self._next < self._num_groups

    async def more(self) -> None:
        """Request the groups that are due, and take one more group. Raises TooManyFailures."""
        await self._collector.ask(self._due())
        group = await self._collector.next_group(self._asked.__contains__)
        await self._collector.keep_search_trees(self._directory)  # which say what the group's search took
        self.env_steps += self._collector.env_steps(group.group_id)
        self._take(group)

    def _due(self) -> list[GroupRequest]:
        """Return the groups to request now; a bounded number of groups is open at a time."""
        requests, self._again = self._again, []
        while self._next < self._num_groups and self._collector.num_open + len(requests) < self.MAX_OPEN:
            requests.append(self._request(self._next, 0, self._plays.samples_per_task))
            self._next += 1
        return requests

    def _take(self, group: Group) -> None:
        """Count the valid episodes of a group, and note that the rest must be requested again."""
        self._collector.settle(group.group_id)
        index, replacement = self._asked.pop(group.group_id)
        good = [scored for scored in group.trajectories if self._counts(scored)]
        self._counted += [(index, scored) for scored in good]
        missing = len(group.numbers) - len(good)
        self._failed_in_a_row = 0 if good else self._failed_in_a_row + 1
        if not missing:
            return
        self.num_failed += missing
        self._last_failure = group.failure_reason() or "stale weights"
        log.warning("episodes.failed", group_id=group.group_id, episodes=missing, reason=self._last_failure)
        if self._plays.by_expert:
            self._nothing_but_failures()
            return
        allowed = self._max_replacements
        if replacement >= allowed and self._failed_in_a_row > allowed:
            raise TooManyFailures(
                f"{self._prefix}: task {index} failed {replacement + 1} times ({self._last_failure}); "
                "a technical failure is not counted as a failure of the policy, so there is nothing to go on with: "
                "look into the rollout's and the environment's logs"
            )
        self._again.append(self._request(index, replacement + 1, missing))

    def _nothing_but_failures(self) -> None:
        """Raise TooManyFailures if all demonstrations failed, which is no accident; single failures are left out."""
        if not self._counted and not self._asked and self._next == self._num_groups:
            raise TooManyFailures(
                f"{self._prefix}: every one of {self._num_groups} demonstrations failed ({self._last_failure}); check "
                "that the environment has an expert and is served, or remove the stage from the recipe"
            )

    def _counts(self, scored: ScoredTrajectory) -> bool:
        if self._plays.purpose == "eval":  # what is measured is success, and the environment says that
            return scored.trajectory.status.trainable and is_current(scored, self._state)
        return not is_failure(scored) and (scored.trajectory.by_expert or is_current(scored, self._state))

    def _request(self, index: int, replacement: int, samples: int) -> GroupRequest:
        request = self._planner.play(self._prefix, self._plays, index, replacement, samples)
        self._asked[request.group_id] = (index, replacement)
        return request


def is_current(scored: ScoredTrajectory, state: RunState) -> bool:
    """Return whether the episode was sampled from exactly the current weights, whatever its version numbers."""
    policy = scored.trajectory.policy
    return state.staleness(policy.version_min) == 0 and state.staleness(policy.version_max) == 0
