"""Play train tasks, by the policy or by the environment's expert, and keep the episodes for later stages."""

from collections.abc import Mapping
from typing import Any, ClassVar

from gymfleet_contracts.recipe import strategy_section
from gymfleet_contracts.reward import RewardSection
from gymfleet_contracts.rollout import Budget, Sampling
from gymfleet_contracts.stages import PlannedStage, StageFacts
from pydantic import Field, JsonValue, PositiveInt

from gymfleet_trainer.errors import TooManyFailures
from gymfleet_trainer.run.context import RunContext
from gymfleet_trainer.stage import Plays, Stage, StageOptions


class CollectOptions(StageOptions):
    """Task i is played `samples_per_task` times."""

    num_tasks: PositiveInt = 40
    """Number of train tasks: the first ones in the mix of the environments."""
    max_env_steps: PositiveInt | None = None
    """Begin no further task once this many environment steps were taken, even before `num_tasks`: for comparisons. They
    are counted as in a `reinforce` stage. In a repeat, each round may take this many."""
    new_tasks: bool = False
    """In a repeat, play in each round the tasks after those of the previous round, instead of the same ones."""
    samples_per_task: PositiveInt = 1
    """Episodes per task."""
    strategy: str | dict[str, JsonValue] = "independent"
    """How the episodes are played: the name of a strategy, or a table with `use` and its options. With `expert` they
    are demonstrations, and those that the expert does not solve are left out."""
    rejected: bool = False
    """Also keep the episodes that a search tried and did not choose, as far as they got: for stages that compare them
    with the chosen ones, and for labels of turns. They are never imitated."""
    sampling: Sampling = Field(default=Sampling(temperature=1.0))
    level: str | None = None
    """Difficulty; by default the environment's, at the end of its schedule."""
    reward: RewardSection | None = None
    budget: Budget = Budget()
    """The budget that the episodes of a task share."""


class Collect(Stage[CollectOptions]):
    """Play train tasks, by the policy or by the environment's expert, and keep the episodes for later stages."""

    Options = CollectOptions
    facts: ClassVar[StageFacts] = StageFacts(leaves=("episodes",), plugins={"strategy": "strategy"})
    small: ClassVar[Mapping[str, Any]] = {"num_tasks": 3, "strategy": "expert"}

    def __init__(self, planned: PlannedStage, options: CollectOptions) -> None:
        super().__init__(planned, options)
        self._first_task = len(planned.earlier) * options.num_tasks if options.new_tasks else 0

    def plays(self) -> Mapping[str, Plays]:
        """Return the stage's episodes."""
        strategy = strategy_section(self.options.strategy).spec
        purpose: Any = "demonstration" if strategy.use == "expert" else "collect"
        options = self.options
        return {
            "": Plays(
                options.num_tasks, options.samples_per_task, purpose, strategy, options.sampling, options.level,
                options.reward, options.budget, rejected=options.rejected, first_task=self._first_task,
                max_env_steps=options.max_env_steps,
            )
        }  # fmt: skip

    async def run(self, run: RunContext) -> None:
        """Collect once."""
        by_expert = self.plays()[""].by_expert
        playing = await run.played()
        episodes = playing.counted
        if by_expert:
            episodes = [scored for scored in episodes if scored.trajectory.success]
        if not episodes:
            raise TooManyFailures(
                f"{self.table}: none of {self.options.num_tasks} demonstrations succeeded; check that the environment "
                f"{' and '.join(env.name for env in run.recipe.environments)} has an expert and is served, or remove "
                "the stage from the recipe"
            )
        if not by_expert:
            # Set, not added up: a resumed stage plays again.
            run.state.counts[f"env_steps.{self.name}"] = playing.env_steps
        run.state.count("demonstrations" if by_expert else "episodes_collected", len(episodes))
        run.leave(episodes)
