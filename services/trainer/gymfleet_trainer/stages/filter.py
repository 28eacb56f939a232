"""Keep the episodes that are worth learning from."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, ClassVar

from gymfleet_contracts.stages import StageFacts
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import JsonValue, PositiveInt

from gymfleet_trainer.errors import NothingLeft
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stage import Stage, StageOptions


class FilterOptions(StageOptions):
    """An episode is kept if all that is given holds."""

    data: str | tuple[str, ...]
    """The episodes: of a stage, of several, or of a .jsonl file."""
    success: bool | None = None
    """Keep those that solved their task; with `false` those that did not."""
    min_reward: float | None = None
    """Keep those whose reward is at least this."""
    best_of_task: PositiveInt | None = None
    """Then keep only so many of each task, those with the highest rewards."""


class Filter(Stage[FilterOptions]):
    """Keep the episodes that are worth learning from, as rejection sampling and ReST do."""

    Options = FilterOptions
    facts: ClassVar[StageFacts] = StageFacts(reads=True, leaves=("episodes",))
    small: ClassVar[Mapping[str, Any]] = {"success": True}

    async def run(self, run: RunContext) -> None:
        """Filter once."""
        given = run.episodes()
        kept = [scored for scored in given if self._keeps(scored)]
        if self.options.best_of_task is not None:
            kept = _best(kept, self.options.best_of_task)
        if not kept:
            raise NothingLeft(
                f"{self.table}: none of {len(given)} episodes of {', '.join(self.data)} is kept; loosen the filter, "
                "or collect more"
            )
        run.leave(kept)

    def _keeps(self, scored: ScoredTrajectory) -> bool:
        options = self.options
        if options.success is not None and scored.trajectory.success is not options.success:
            return False
        return options.min_reward is None or _reward(scored) >= options.min_reward


def _best(episodes: list[ScoredTrajectory], count: int) -> list[ScoredTrajectory]:
    """Return the episodes with the highest rewards of each task, in the order in which they came."""
    by_task: dict[JsonValue, list[tuple[float, int]]] = defaultdict(list)
    for place, scored in enumerate(episodes):
        by_task[_task(scored)].append((-_reward(scored), place))
    kept = {place for ranked in by_task.values() for _, place in sorted(ranked)[:count]}
    return [scored for place, scored in enumerate(episodes) if place in kept]


def _reward(scored: ScoredTrajectory) -> float:
    return scored.reward.total if scored.reward is not None else float("-inf")


def _task(scored: ScoredTrajectory) -> str:
    task = scored.trajectory.task
    return f"{task.env}/{task.level}/{task.split}/{task.task_id}/{task.seed}"
