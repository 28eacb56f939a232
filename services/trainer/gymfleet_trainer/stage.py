"""The interface of a stage: one phase of a run, such as a warm start, a measurement or reinforcement learning.

The stages that come with gymfleet are the modules of `gymfleet_trainer.stages`.
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
    """Options of a stage, in its table of the recipe. A misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


OptionsT = TypeVar("OptionsT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Plays:
    """Episodes that a stage wants played outside of training."""

    num_tasks: int
    """The first `num_tasks` tasks: of each environment in the held-out split, or of the mix in the train split."""
    samples_per_task: int = 1
    purpose: Purpose = "eval"
    """`eval` plays the held-out split; `demonstration` and `collect` play the train split."""
    strategy: StrategySpec = field(default_factory=StrategySpec)
    sampling: Sampling = field(default_factory=Sampling)
    level: str | None = None
    """Difficulty; by default the environment's, at the end of its schedule."""
    reward: RewardSection | None = None
    """The stage's own reward; by default that of the recipe or the environment."""
    budget: Budget = field(default_factory=Budget)
    """The budget that the episodes of a task share."""
    rejected: bool = False
    """Whether a search also returns the episodes that it tried and did not choose."""
    first_task: int = 0
    """Number of tasks of the mix to skip before the first, in the train split."""
    max_env_steps: int | None = None
    """Begin no further task once this many environment steps were taken."""
    allocation: AllocationOptions | None = None
    """How the tasks share a budget, which decides how often each is played; an episode's worth is its reward from the
    recipe's evaluator."""

    @property
    def by_expert(self) -> bool:
        """Return whether the environment's expert plays; tasks it cannot solve are left out, and the policy is idle."""
        return self.purpose == "demonstration"

    def num_groups(self, recipe: Recipe) -> int:
        """Return the number of groups."""
        return self.num_tasks * (len(recipe.environments) if self.purpose == "eval" else 1)

    def num_episodes(self, recipe: Recipe) -> int:
        """Return the number of episodes."""
        if self.allocation is not None:  # at most: no episode takes less than a reply
            return min(self.num_groups(recipe) * self.allocation.most, self.allocation.model_calls)
        return self.num_groups(recipe) * self.samples_per_task


class Stage(ABC, Generic[OptionsT]):
    """One phase of a run. An interrupted stage runs again from the last checkpoint.

    Attributes:
        name: unique among the stages of the run; the ids of its groups begin with it.
        kind: its kind, as named in the recipe.
        table: its place in the recipe, for messages.
        data: the episodes that it reads, if any: names of earlier stages, and paths.
    """

    Options: ClassVar[type[Any]] = StageOptions
    """The model of its options, a subclass of `StageOptions`."""
    facts: ClassVar[StageFacts] = StageFacts()
    small: ClassVar[Mapping[str, Any]] = {}
    """Options with which the stage takes a second, for its conformance suite, which provides `data`."""

    def __init__(self, planned: PlannedStage, options: OptionsT) -> None:
        self.name = planned.name
        self.kind = planned.kind
        self.table = planned.table
        self.options = options
        self.data = tuple(planned.data()) if self.facts.reads else ()

    @abstractmethod
    async def run(self, run: "RunContext") -> None:
        """Carry out the rest of the stage: `run.state.done` of its units are already done."""

    def check(self, recipe: Recipe, planned: PlannedStage) -> None:
        """Raise `RecipeError` for a recipe that it cannot work with, before anything is started."""

    def plays(self) -> Mapping[str, Plays]:
        """Return, by label, the episodes that the stage plays with `run.play(LABEL)`; the default label is "".

        They depend on the options alone: a resumed run requests the same episodes under the same ids.
        """
        return {}

    def strategies(self, recipe: Recipe) -> list[StrategySpec]:
        """Return the strategies by which its episodes are played, each once."""
        del recipe
        found: list[StrategySpec] = []
        for plays in self.plays().values():
            found += [] if plays.strategy in found else [plays.strategy]
        return found

    def held(self, recipe: Recipe) -> int:
        """Return how many episodes may be open at once."""
        return max((plays.num_episodes(recipe) for plays in self.plays().values()), default=0)

    def prefix(self, label: str = "") -> str:
        """Return the beginning of the ids of a label's groups, up to a dot."""
        return f"{self.name}.{label}" if label else self.name

    def request(self, run: "RunContext", group_id: str) -> GroupRequest | None:
        """Return the request that the stage makes, or may still make, under an id; None if the id is not its own."""
        return next(
            (
                found
                for label, plays in self.plays().items()
                if (found := run.planner.find(self.prefix(label), plays, group_id)) is not None
            ),
            None,
        )
