"""Measurement: play held-out tasks with the current policy, and give an interval for its success rate."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from gymfleet_contracts.recipe import Recipe, RecipeError, strategy_section
from gymfleet_contracts.reward import RewardSection
from gymfleet_contracts.rollout import Budget, Sampling
from gymfleet_contracts.stages import PlannedStage, StageFacts
from gymfleet_kit.plugins import checked_options
from pydantic import Field, JsonValue, PositiveInt

from gymfleet_trainer.run.allocation import AllocationOptions
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.run.measuring import measure
from gymfleet_trainer.stage import Plays, Stage, StageOptions


class MeasureOptions(StageOptions):
    """Task i is played `samples_per_task` times."""

    num_tasks: PositiveInt = 200
    """Number of held-out tasks per environment."""
    samples_per_task: PositiveInt = 1
    """Episodes per task; with k of them the measurement reports pass^1 to pass^k."""
    sampling: Sampling = Field(default=Sampling(temperature=1.0))
    level: str | None = None
    """Difficulty; by default the environment's, at the end of its schedule."""

    def plays(self) -> Plays:
        """Return the episodes of one measurement."""
        return Plays(self.num_tasks, self.samples_per_task, sampling=self.sampling, level=self.level)


class MeasureStageOptions(MeasureOptions):
    """A measurement that is a separate stage."""

    reward: RewardSection | None = None
    strategy: str | dict[str, JsonValue] = "independent"
    """How the episodes are played: the name of a strategy, or a table with `use` and its options. A strategy that
    chooses by the environment's score measures how well it searches with the answer at hand, not a model."""
    budget: Budget = Budget()
    """The budget that the episodes of a task share; it makes strategies comparable."""
    allocation: AllocationOptions | None = None
    """A budget that all tasks share: tasks that `[rollout.evaluator]` finds solved take no further episode, and what is
    left goes to tasks that look solvable. The best episode of each task counts."""

    def plays(self) -> Plays:
        """Return the episodes of one measurement."""
        strategy = strategy_section(self.strategy).spec
        return replace(
            super().plays(), reward=self.reward, strategy=strategy, budget=self.budget, allocation=self.allocation
        )


class Measure(Stage[MeasureStageOptions]):
    """Play held-out tasks, and leave the success rate under its name in the summary."""

    Options = MeasureStageOptions
    facts: ClassVar[StageFacts] = StageFacts(plugins={"strategy": "strategy"})
    small: ClassVar[Mapping[str, Any]] = {"num_tasks": 3}

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:
        """Raise `RecipeError` if tasks should share a budget and cannot."""
        if (allocation := self.options.allocation) is None:
            return
        table, plays = f"{planned.table}.allocation", self.options.plays()
        if plays.strategy.use != "independent" or plays.samples_per_task > 1 or plays.budget.limits_anything:
            raise RecipeError(
                f"{table} says how often each task is played: leave out strategy, samples_per_task and budget"
            )
        if self.options.reward is not None or recipe.rollout.evaluator is None:
            raise RecipeError(
                f"{table}: what an episode is worth says [rollout.evaluator], a table like [reward]: give that, and no "
                f"{planned.table}.reward"
            )
        longest = max(recipe.limits_of(env).max_turns for env in recipe.environments)
        if allocation.model_calls < (least := plays.num_groups(recipe) * longest):
            raise RecipeError(
                f"{table}.model_calls = {allocation.model_calls}: every task is played once, and {least} replies may "
                "be needed for that"
            )

    def plays(self) -> Mapping[str, Plays]:
        """Return the stage's episodes."""
        return {"": self.options.plays()}

    async def run(self, run: RunContext) -> None:
        """Measure once."""
        if self.name in run.state.evals:
            return
        result, episodes = await measure(run)
        run.state.evals[self.name] = result
        run.directory.trajectories(self.name, episodes)


def measurement_of(recipe: Recipe, num_tasks: int | None = None) -> MeasureStageOptions:
    """Return the options of a recipe's last measurement, or those of `num_tasks` tasks played once each.

    Raises `PluginError` for options that a measurement does not take.
    """
    given = next((stage.options for stage in reversed(recipe.plan()) if stage.kind == "measure"), {})
    changed = {} if num_tasks is None else {"num_tasks": num_tasks, "samples_per_task": 1}
    return checked_options(MeasureStageOptions, {**given, **changed}, table="stages.measure", owner="measure")
