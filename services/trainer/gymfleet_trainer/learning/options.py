"""Options for the updates of the stages that train."""

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
    """Options for imitating replies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epochs: PositiveInt = 10
    """Passes over the replies."""
    tokens_per_batch: PositiveInt = 8192
    """Tokens of one optimiser update."""
    roles: Roles = None
    """Imitate only the tokens of these roles, as the strategy names them; by default of all roles."""
    curriculum: Literal["length", "turns", "reward"] | None = None
    """Every epoch goes from easy to hard: from few tokens to many (`length`), from few replies to many (`turns`), or
    from high rewards to low (`reward`). By default the order is random."""
    optimizer: OptimizerOptions = OptimizerOptions(learning_rate=1e-3)


class RewardModelOptions(BaseModel):
    """Options for training a reward model."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    reads: ClassVar[Literal["episode", "turns"]] = "episode"
    """Where the model's numbers are read."""

    epochs: PositiveInt = 3
    """Passes over the training data."""
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The share of tasks that is kept out of training and measured after each epoch."""
    min_gap: PositiveFloat = 0.01
    """The minimum difference between the rewards of two episodes of a task that form a pair."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """Pair only episodes whose transcripts have similar numbers of tokens: the longer one at most this many times as
    many as the other. Without it, length alone may reveal which is better."""
    max_pairs_per_task: PositiveInt = 16
    """The maximum number of pairs drawn from a task."""
    replay: Annotated[float, Field(ge=0)] = 0.0
    """In a `repeat`: how many pairs of earlier rounds, or with `process_reward` episodes, are learned from again for
    each one of this round, such as 0.5. They are drawn anew in each round; there may be fewer. A task that one round
    held out is held out in all later rounds."""
    start_from: Literal["policy", "previous"] = "policy"
    """What the model starts from: the current policy with a head of 0 or, in a `repeat`, the model of the previous
    round; the first round has none."""
    if_nothing: IfNothing = "end"
    """What happens if a round has nothing to learn from, such as no pairs because all tasks were solved: the run ends
    with exit code 9, or it continues with the model of the previous round; the first round has none."""
    tokens_per_microbatch: PositiveInt = 4096
    """Bounds memory; the loss does not depend on it."""
    optimizer: OptimizerOptions = OptimizerOptions(learning_rate=1e-4)

    @property
    def per_batch(self) -> int:
        """How many pairs or episodes one optimiser update has."""
        raise NotImplementedError


class BradleyTerryOptions(RewardModelOptions):
    """Options for a reward model that learns which of two episodes is better."""

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
    """Options for a reward model that learns the worth of each turn."""

    reads: ClassVar[Literal["episode", "turns"]] = "turns"

    episodes_per_batch: PositiveInt = 32
    """Episodes of one optimiser update."""

    @property
    def per_batch(self) -> int:
        """How many episodes one optimiser update has."""
        return self.episodes_per_batch


class GenerativeJudgeOptions(AskingOptions, ScaleOptions, RewardModelOptions):
    """Options for a judge that learns to write verdicts."""

    components: Annotated[tuple[Literal["judge", "judge_pairs"], ...], Field(min_length=1)] = ("judge_pairs",)
    """The components whose questions it learns to answer: `judge`, a score for an episode; `judge_pairs`, which of two
    episodes of a task is better, in both orders."""
    grades: Annotated[int, Field(ge=2, le=101)] = 11
    """For `judge`: the number of scores that it learns to give, at equal distances from `lowest` to `highest`."""
    worst_reward: Number = 0.0
    """For `judge`: the reward that is worth `lowest`, as is any reward below it."""
    best_reward: Number = 1.0
    """For `judge`: the reward that is worth `highest`, as is any reward above it."""
    questions_per_batch: PositiveInt = 32
    """Questions of one optimiser update; the two orders of a pair count as one."""

    @model_validator(mode="after")
    def rewards_have_two_ends(self) -> Self:
        """Require `worst_reward < best_reward`."""
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
    """Number of batches of trajectories."""
    updates_per_step: PositiveInt = 1
    """Optimiser updates per batch: its groups are split into this many parts."""
    epochs_per_step: PositiveInt = 1
    """Passes over each batch."""
    tokens_per_microbatch: PositiveInt = 8192
    """Bounds memory; the loss does not depend on it."""
    optimizer: OptimizerOptions = OptimizerOptions()


class PreferenceUpdates(UpdateOptions):
    """Options for learning, with an algorithm, from examples that the stage makes itself."""

    algorithm: str
    options: dict[str, Any] = {}
    """The algorithm's options, unchecked."""
    roles: Roles = None
    reference: str | None = None
    """A model's directory or hub id; by default the reference is the policy as it is when the stage begins."""


class ExplorationOptions(BaseModel):
    """How the policy is made to explore, as a function of the step; every option can be left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: Schedule | None = None
    """Replaces `rollout.sampling.temperature`: a table with `start`, `end`, `steps` and `shape`. Each episode is
    trained on at the temperature at which it was sampled."""
    hints: Annotated[float, Field(ge=0, le=1)] | Schedule = 0.0
    """The probability that an observation ends with the expert's move, which is then part of the prompt; a number, or a
    table with `start`, `end`, `steps` and `shape`. Drawn once for all episodes of a group. Measurements have none."""
    novelty: NoveltyOptions | None = None
    """A bonus for states that few episodes reached. Only the update uses it; it is part of no recorded reward and no
    measurement."""

    @model_validator(mode="after")
    def numbers_are_possible(self) -> Self:
        """Require a temperature that has log-probabilities, and hints that are probabilities."""
        if self.temperature is not None and self.temperature.bounds[0] < MIN_TRAIN_TEMPERATURE:
            raise ValueError(f"temperature: start and end must be at least {MIN_TRAIN_TEMPERATURE:g}")
        if isinstance(self.hints, Schedule) and not 0 <= self.hints.bounds[0] <= self.hints.bounds[1] <= 1:
            raise ValueError("hints: start and end must be in 0 to 1")
        return self

    def sampling(self, given: Sampling, step: int) -> Sampling:
        """Return how tokens are sampled in a step; steps count from 1."""
        return (
            given if self.temperature is None else given.model_copy(update={"temperature": self.temperature.at(step)})
        )


class ReinforceOptions(UpdateOptions):
    """Reinforcement learning. Keys that are not named here are options of the algorithm, which checks them."""

    model_config = ConfigDict(extra="allow", json_schema_extra={ASCENDING: ["updates_per_step", "groups_per_step"]})

    algorithm: str = "grpo"
    """An algorithm that comes with gymfleet, see `gymfleet plugins list`; or your own: a name that an installed package
    declares, `package.module:Class`, or the path of a .py file."""
    groups_per_step: PositiveInt = 32
    """Tasks in a batch."""
    group_size: PositiveInt = 8
    """Episodes per task; at least 2 where an algorithm compares them, as grpo and rloo do."""
    max_staleness: Annotated[int, Field(ge=0)] = 0
    """How many policy versions a trajectory may be behind; 0 is synchronous. Groups are trained on in the order in
    which they were requested, and the trainer waits for a group that would be too old after a step: long episodes are
    learned from as often as short ones."""
    max_redraws: Annotated[int, Field(ge=0)] = 9
    """How often a group's place in the batch goes to another task because the algorithm asks for another group, as
    grpo does with `dynamic_sampling`. After that the last group is trained on. Tasks that failed count too."""
    keep_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of a batch's groups that is trained on, whatever the algorithm: those whose rewards have the largest
    standard deviation, at least one. The other groups were played all the same; a step's metrics leave them out."""
    roles: Roles = None
    """Train only on the tokens of these roles, as the strategy names them; by default of all roles."""
    exploration: ExplorationOptions = ExplorationOptions()
    max_diverged_steps: PositiveInt = 3
    """End the run (exit code 10) after this many steps in a row without a single update whose gradient is finite, or
    with a critic whose values are more than ten times as large as the largest return (or 1, if that is larger). Each
    such step is logged as a warning."""
    max_wall_s: PositiveFloat | None = None
    """Stop after the step in which this much time was spent, even before `steps`."""
    max_env_steps: PositiveInt | None = None
    """Stop after the step by which this many environment steps were taken, even before `steps`: for comparisons. All
    environment steps taken for training count, including those of redrawn or dropped groups, of replays, and of what a
    strategy plays besides the episodes that it returns, such as the branches of a search. Measurements do not count. A
    reply without an action takes no step."""

    @model_validator(mode="after")
    def updates_have_groups(self) -> Self:
        """Require at least one group of the batch for every update."""
        if self.updates_per_step > self.groups_per_step:
            raise ValueError("updates_per_step must not exceed groups_per_step")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The algorithm's options, unchecked."""
        return dict(self.model_extra or {})
