"""What the stages that train can be told about their updates."""

from typing import Annotated, Any, ClassVar, Literal, Self

from gymfleet_contracts.recipe import MIN_TRAIN_TEMPERATURE
from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.schedule import Schedule
from gymfleet_contracts.trajectory import RoleName
from gymfleet_kit.judging.asking import AskingOptions, ScaleOptions
from gymfleet_kit.plugins import ASCENDING
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, model_validator

from gymfleet_trainer.learning.novelty import NoveltyOptions
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.stage import IfNothing

Number = Annotated[float, Field(allow_inf_nan=False)]
Roles = Annotated[tuple[RoleName, ...], Field(min_length=1)] | None


class SupervisedOptions(BaseModel):
    """How replies are imitated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: PositiveInt = 10
    """Passes over them."""
    tokens_per_batch: PositiveInt = 8192
    """Tokens of one optimiser update."""
    roles: Roles = None
    """Roles, as a strategy names them, whose tokens alone are imitated; without it all."""
    curriculum: Literal["length", "turns", "reward"] | None = None
    """Every epoch goes from easy to hard: from few tokens to many (`length`), from few replies to many (`turns`), or
    from high rewards to low (`reward`). Without it the order is drawn."""
    optimizer: OptimizerOptions = OptimizerOptions(learning_rate=1e-3)


class RewardModelOptions(BaseModel):
    """How a reward model is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    reads: ClassVar[Literal["episode", "turns"]] = "episode"
    """Where its numbers are read."""

    epochs: PositiveInt = 3
    """Passes over what is trained on."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The share of tasks that is not trained on, but measured after each epoch."""
    min_gap: PositiveFloat = 0.01
    """By how much the rewards of two episodes of a task differ at the least, if they are a pair."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """Pair only episodes whose transcripts have similarly many tokens: the longer one at most so many times as many.
    Without it their lengths may tell which is better."""
    max_pairs_per_task: PositiveInt = 16
    """Of a task's pairs so many are drawn."""
    replay: Annotated[float, Field(ge=0)] = 0.0
    """In a `repeat`: for each pair of this round, or with `process_reward` for each episode, so many of the earlier
    rounds are learned from again, such as 0.5. They are drawn anew in each round; there may be fewer. A task that one
    round held out is held out in those after it."""
    start_from: Literal["policy", "previous"] = "policy"
    """What it begins as: the policy as it is, with a head of 0, or, in a `repeat`, the model of the round before, which
    the first round does not have."""
    if_nothing: IfNothing = "end"
    """What becomes of the run if a round has nothing to learn from, such as no pairs because all tasks were solved: it
    ends, with exit code 9, or it goes on with the model of the round before, which the first round does not have."""
    tokens_per_microbatch: PositiveInt = 4096
    """Bounds memory; the loss does not depend on it."""
    optimizer: OptimizerOptions = OptimizerOptions(learning_rate=1e-4)

    @property
    def per_batch(self) -> int:
        """How many pairs or episodes one optimiser update has."""
        raise NotImplementedError


class BradleyTerryOptions(RewardModelOptions):
    """How a reward model learns which of two episodes is better."""

    pairs_per_batch: PositiveInt = 32
    """Pairs of one optimiser update."""
    centring: Annotated[float, Field(ge=0)] = 0.01
    """How strongly the two numbers of a pair are pulled to opposite sides of 0: the coefficient of the square of their
    sum."""

    @property
    def per_batch(self) -> int:
        """How many pairs one optimiser update has."""
        return self.pairs_per_batch


class ProcessRewardOptions(RewardModelOptions):
    """How a reward model learns what each turn is worth."""

    reads: ClassVar[Literal["episode", "turns"]] = "turns"

    episodes_per_batch: PositiveInt = 32
    """Episodes of one optimiser update."""

    @property
    def per_batch(self) -> int:
        """How many episodes one optimiser update has."""
        return self.episodes_per_batch


class GenerativeJudgeOptions(AskingOptions, ScaleOptions, RewardModelOptions):
    """How a judge learns to write verdicts."""

    components: Annotated[tuple[Literal["judge", "judge_pairs"], ...], Field(min_length=1)] = ("judge_pairs",)
    """The components whose questions it learns to answer: `judge`, a score for an episode; `judge_pairs`, which of two
    episodes of a task is better, in both orders."""
    grades: Annotated[int, Field(ge=2, le=101)] = 11
    """Of `judge`: the scores that it learns to give, as many as these at equal distances from `lowest` to `highest`."""
    worst_reward: Number = 0.0
    """Of `judge`: the reward that is worth `lowest`, as is any below it."""
    best_reward: Number = 1.0
    """Of `judge`: the reward that is worth `highest`, as is any above it."""
    questions_per_batch: PositiveInt = 32
    """Questions of one optimiser update; the two orders of a pair count as one."""

    @model_validator(mode="after")
    def rewards_have_two_ends(self) -> Self:
        """`worst_reward < best_reward`."""
        if self.worst_reward >= self.best_reward:
            raise ValueError("worst_reward must be below best_reward")
        return self

    @property
    def per_batch(self) -> int:
        """How many episodes and pairs one optimiser update asks about."""
        return self.questions_per_batch


class UpdateOptions(BaseModel):
    """How a batch of trajectories becomes optimiser updates."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: PositiveInt = 100
    """Batches of trajectories."""
    updates_per_step: PositiveInt = 1
    """Optimiser updates per batch: its groups are split into so many parts."""
    epochs_per_step: PositiveInt = 1
    """Passes over each batch."""
    tokens_per_microbatch: PositiveInt = 8192
    """Bounds memory; the loss does not depend on it."""
    optimizer: OptimizerOptions = OptimizerOptions()


class PreferenceUpdates(UpdateOptions):
    """How a stage learns from examples that it makes itself, as an algorithm says."""

    algorithm: str
    options: dict[str, Any] = {}
    """The algorithm's, unchecked."""
    roles: Roles = None
    reference: str | None = None
    """A model's directory or hub id; without it the reference is the policy as it is when the stage begins."""


class ExplorationOptions(BaseModel):
    """How the policy is made to try things out, as a function of the step: all of it can be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: Schedule | None = None
    """Instead of `rollout.sampling.temperature`: a table with `start`, `end`, `steps` and `shape`. Each episode is
    trained on at the temperature at which it was sampled."""
    hints: Annotated[float, Field(ge=0, le=1)] | Schedule = 0.0
    """How likely an observation ends with the expert's move, which is then part of the prompt; a number, or a table
    with `start`, `end`, `steps` and `shape`. Drawn once for all episodes of a group. Measurements have none."""
    novelty: NoveltyOptions | None = None
    """A bonus for states that few episodes came to. It stands in no reward and no measurement: the update alone has
    it."""

    @model_validator(mode="after")
    def numbers_are_possible(self) -> Self:
        """A temperature has log-probabilities; a probability is one."""
        if self.temperature is not None and self.temperature.bounds[0] < MIN_TRAIN_TEMPERATURE:
            raise ValueError(f"temperature: start and end must be at least {MIN_TRAIN_TEMPERATURE:g}")
        if isinstance(self.hints, Schedule) and not 0 <= self.hints.bounds[0] <= self.hints.bounds[1] <= 1:
            raise ValueError("hints: start and end must be in 0 to 1")
        return self

    def sampling(self, given: Sampling, step: int) -> Sampling:
        """Return how tokens are drawn in a step, which counts from 1."""
        return (
            given if self.temperature is None else given.model_copy(update={"temperature": self.temperature.at(step)})
        )


class ReinforceOptions(UpdateOptions):
    """Reinforcement learning. Keys that are not named here are options of the algorithm, which checks them."""

    model_config = ConfigDict(extra="allow", json_schema_extra={ASCENDING: ["updates_per_step", "groups_per_step"]})

    algorithm: str = "grpo"
    """One that comes with gymfleet, of which `gymfleet plugins list` has the names; or one of your own: a name that an
    installed package declares, `package.module:Class`, or the path of a .py file."""
    groups_per_step: PositiveInt = 32
    """Tasks in a batch."""
    group_size: PositiveInt = 8
    """Episodes per task; at least 2 where an algorithm compares them, as grpo and rloo do."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Policy versions that a trajectory may be behind; 0 is synchronous. The groups that were asked for first are
    trained on first, and one that would be too old after a step is waited for: long episodes are learned from as
    often as short ones."""
    max_redraws: Annotated[int, Field(ge=0)] = 9
    """How often a group's place in the batch goes to another task because the algorithm asks for another group, as
    grpo does with `dynamic_sampling`. Then the last one is trained on. Tasks that failed count too."""
    keep_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of a batch's groups, the share that is trained on: those whose rewards have the largest standard deviation, at
    least one. Whatever the algorithm. The others were played all the same, and a step's metrics are without them."""
    roles: Roles = None
    """Roles, as the strategy names them, whose tokens alone are trained on; without it all."""
    exploration: ExplorationOptions = ExplorationOptions()
    max_diverged_steps: PositiveInt = 3
    """So many steps in a row without one update whose gradient is finite, or with a critic whose values are ten times
    as large as any return, end the run (exit code 10). Each of them is one warning."""
    max_wall_s: PositiveFloat | None = None
    """Stop after the step in which this much time was spent, even before `steps`."""
    max_env_steps: PositiveInt | None = None
    """Stop after the step by which so many environment steps were taken, even before `steps`: for comparisons. All that
    were taken for it count: of groups that were redrawn or dropped, of replays, and of what a strategy plays besides
    the episodes that it hands in, such as the branches of a search. Measurements do not. A reply that asks for no
    action takes no step."""

    @model_validator(mode="after")
    def updates_have_groups(self) -> Self:
        """Every update of a batch has at least one of its groups."""
        if self.updates_per_step > self.groups_per_step:
            raise ValueError("updates_per_step must not exceed groups_per_step")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's options, unchecked."""
        return dict(self.model_extra or {})
