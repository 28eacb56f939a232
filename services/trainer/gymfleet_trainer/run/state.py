"""The content of a checkpoint besides weights: the run's progress, and what it has consumed."""

from collections.abc import Callable

from gymfleet_contracts.run import TaskCost
from pydantic import BaseModel, ConfigDict, Field


class EnvironmentResult(BaseModel):
    """One environment's part of a measurement."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_episodes: int
    num_successes: int
    success: float
    interval: tuple[float, float]


class Left(BaseModel):
    """A stage's results in the run directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kind: str
    seconds: float
    episodes: str | None = None
    """A file of the run directory, with a `ScoredTrajectory` or a `Conversation` on each line."""
    num_episodes: int | None = None
    model: str | None = None
    """A directory that transformers can load."""
    success: float | None = None
    """The success rate that a measurement found."""


class EvalResult(BaseModel):
    """One measurement on held-out tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    num_episodes: int
    num_successes: int
    success: float
    interval: tuple[float, float]
    """Wilson's at 95 %; where tasks were played several times, by the number of independent episodes that tell as
    much."""
    mean_score: float
    score_interval: tuple[float, float]
    """Wilson's for the mean score: no score in [0, 1] varies more than one that is 0 or 1, so that the interval is no
    narrower than 95 % requires."""
    mean_turns: float
    policy_version: int
    cut_replies: float = 0.0
    """Share of the replies that were cut off by a token limit."""
    mean_turns_solved: float | None = None
    """Mean turns of the episodes that succeeded; None if none did."""
    useful_actions: float = 0.0
    """Share of the replies whose action was understood and had not been taken before on the same observation."""
    mistakes: float = 0.0
    """Share of the replies without an action, or with one that was not understood."""
    mended_mistakes: float | None = None
    """Share of the mistakes that the very next reply corrected; None if there were none."""
    failed_episodes: int
    """Episodes that failed for technical reasons; they were played again and are not counted."""
    seconds: float
    spent: TaskCost | None = None
    """Average cost of a task; None if a strategy plays each sample separately and does not report it."""
    pass_hat: tuple[float, ...] = ()
    """`pass^k` for k = 1, 2, ...: the chance that k episodes of a task all succeed, up to the k that every task has."""
    environments: dict[str, EnvironmentResult] = Field(default_factory=dict)
    """Results by title, if there are several environments."""


class RunState(BaseModel):
    """The mutable state of a run, which `Checkpoints` writes next to the weights that it belongs to."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    recipe_hash: str
    model: str = ""
    """The `fingerprint` of the model that the run began with; empty for one of the hub."""
    serial: int = 0
    """Number of the checkpoint, which increases with each one."""
    left: list[Left] = Field(default_factory=list)
    """The results of each finished stage, in order."""
    done: int = 0
    """Finished units of the stage after those: epochs or steps."""
    step: int = 0
    """Finished steps of reinforcement learning, of all stages."""
    age: int = 0
    """How often the weights have changed; staleness is a difference of two ages."""
    version: int = 0
    """The last policy version that was published."""
    ages: dict[int, int] = Field(default_factory=dict)
    """Age of the weights of each published version. The weights of a missing version were lost."""
    first_slot: int = 0
    """Number of slots that earlier stages have used: this stage continues with the tasks after theirs."""
    cursor: int = 0
    """The next slot of this stage for which a training group is requested."""
    open_slots: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """Training groups that were requested and are not settled: id to (slot, replacement)."""
    asked_ages: dict[str, int] = Field(default_factory=dict)
    """Age of the weights when each of these groups was requested."""
    trained: list[str] = Field(default_factory=list)
    dropped: dict[str, str] = Field(default_factory=dict)
    """The reason for each dropped group, by group id."""
    evals: dict[str, EvalResult] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    seconds: dict[str, float] = Field(default_factory=dict)
    offsets: dict[str, int] = Field(default_factory=dict)
    """Lengths of the append-only files in bytes: anything beyond them was written after this checkpoint."""
    searched: dict[str, int] = Field(default_factory=dict)
    """Environment steps that the searches of this stage's groups took, by group id, until the group is settled."""
    trees_read: str = "0"
    """The last entry of the stream of search trees that is in the append-only files."""
    probe: list[list[int]] = Field(default_factory=list)
    probe_is_real: bool = False
    parity_worst: float = 0.0
    parity_batch_worst: float = 0.0
    parity_tolerance: float | None = None
    """The tolerance set from the first batch, if the recipe leaves it open."""

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def spend(self, name: str, seconds: float) -> None:
        """Add to a clock."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def settled_before(self) -> Callable[[str], bool]:
        """Return a test for settled groups: trained, dropped, or part of a finished stage or measurement."""
        groups = {*self.trained, *self.dropped}
        owners = {*(one.name for one in self.left), *self.evals}
        stages = tuple(f"{one.name}." for one in self.left)
        return lambda group_id: (
            group_id in groups or group_id.rpartition(".")[0] in owners or group_id.startswith(stages)
        )

    def staleness(self, version: int) -> int | None:
        """Return how many weight changes ago `version` was made, or None if its weights were lost."""
        age = self.ages.get(version)
        return None if age is None else self.age - age
