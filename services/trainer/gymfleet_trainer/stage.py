"""What a stage is: one phase of a run, such as a warm start, a measurement or reinforcement learning.

Those that come with gymfleet are the modules of `gymfleet_trainer.stages`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.reward import RewardSection
from gymfleet_contracts.rollout import Budget, GroupRequest, Sampling, StrategySpec
from gymfleet_contracts.stages import PlannedStage, StageFacts
from gymfleet_contracts.trajectory import Purpose
from pydantic import BaseModel, ConfigDict

from gymfleet_trainer.run.allocation import AllocationOptions

if TYPE_CHECKING:
    from gymfleet_trainer.run.context import RunContext


IfNothing = Literal["end", "go_on"]


class StageOptions(BaseModel):
    """What a stage can be told, in its table of the recipe. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Plays:
    """Episodes that a stage wants to see played, outside of training."""

    num_tasks: int
    """Of the held-out split the first so many of each environment; of the train split the first so many of the mix."""
    samples_per_task: int = 1
    purpose: Purpose = "eval"
    """`eval` plays the held-out split; `demonstration` and `collect` play the train split."""
    strategy: StrategySpec = field(default_factory=StrategySpec)
    sampling: Sampling = field(default_factory=Sampling)
    level: str | None = None
    """Difficulty; without it that of the environment, at the end of its schedule."""
    reward: RewardSection | None = None
    """The stage's own; without it that of the recipe or the environment."""
    budget: Budget = field(default_factory=Budget)
    """What the episodes of a task may use together."""
    rejected: bool = False
    """Whether what a search tried and did not choose is handed in too."""
    first_task: int = 0
    """Of the train split, so many tasks of the mix are left out before the first."""
    max_env_steps: int | None = None
    """No further task is begun when so many environment steps were taken."""
    allocation: AllocationOptions | None = None
    """How the tasks share a budget, each played as often as that says; what an episode is worth says the recipe's
    evaluator, as its reward."""

    @property
    def by_expert(self) -> bool:
        """Return whether the environment's expert plays: what it cannot solve is left out, and the policy is idle."""
        return self.purpose == "demonstration"

    def num_groups(self, recipe: Recipe) -> int:
        """Return how many groups this is."""
        return self.num_tasks * (len(recipe.environments) if self.purpose == "eval" else 1)

    def num_episodes(self, recipe: Recipe) -> int:
        """Return how many episodes this is."""
        if self.allocation is not None:  # at most: no episode takes less than a reply
            return min(self.num_groups(recipe) * self.allocation.most, self.allocation.model_calls)
        return self.num_groups(recipe) * self.samples_per_task


class Stage(ABC, Generic[OptionsT]):
    """One phase of a run. A stage that was interrupted is run again from the last checkpoint.

    Attributes:
        name: unlike that of all other stages of the run; the ids of its groups begin with it.
        kind: what the recipe calls it.
        table: its place in the recipe, for messages.
        data: the episodes that it reads, if it does: names of earlier stages, and paths.
    """

    Options: ClassVar[type[Any]] = StageOptions
    """The model of its options, a subclass of `StageOptions`."""
    facts: ClassVar[StageFacts] = StageFacts()
    small: ClassVar[Mapping[str, Any]] = {}
    """Options with which it takes a second, for its conformance suite; `data` is given to it there."""

    def __init__(self, planned: PlannedStage, options: OptionsT) -> None:
        self.name = planned.name
        self.kind = planned.kind
        self.table = planned.table
        self.options = options
        self.data = tuple(planned.data()) if self.facts.reads else ()

    @abstractmethod
    async def run(self, run: "RunContext") -> None:
        """Carry out what is left of it: `run.state.done` of its units are done."""

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:
        """Raise `RecipeError` for a recipe that it cannot work with, before anything is started."""

    def plays(self) -> Mapping[str, Plays]:
        """Return the episodes that it has played by `run.play(LABEL)`, by label; the plain one has the label "".

        They depend on the options alone: a run that is resumed asks for the same under the same ids.
        """
        return {}

    def held(self, recipe: Recipe) -> int:
        """Return how many episodes may be open at once."""
        return max((plays.num_episodes(recipe) for plays in self.plays().values()), default=0)

    def prefix(self, label: str = "") -> str:
        """Return what the ids of the groups under a label begin with, up to a dot."""
        return f"{self.name}.{label}" if label else self.name

    def request(self, run: "RunContext", group_id: str) -> GroupRequest | None:
        """Return the request that it makes, or may still make, under an id; None for an id that is not its own."""
        return next(
            (
                found
                for label, plays in self.plays().items()
                if (found := run.planner.find(self.prefix(label), plays, group_id)) is not None
            ),
            None,
        )
