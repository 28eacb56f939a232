"""What a checkpoint holds besides weights: how far the run has come, and what it has consumed."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

DEMONSTRATION_PREFIX: Final = "demo-"


def evaluation_prefix(name: str) -> str:
    """Return the prefix of the ids of a measurement's groups."""
    return f"{name}-t"


class Phase(StrEnum):
    """The parts of a run, in order."""

    SFT = "sft"
    EVAL_BEFORE = "eval_before"
    RL = "rl"
    EVAL_AFTER = "eval_after"
    DONE = "done"


class EvalResult(BaseModel):
    """One measurement on held-out tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    num_episodes: int
    num_successes: int
    success: float
    interval: tuple[float, float]
    """Wilson interval at 95 %."""
    mean_score: float
    mean_turns: float
    policy_version: int
    cut_replies: float = 0.0
    """Share of the replies that were cut off by a token limit."""
    failed_episodes: int
    """Episodes that failed for technical reasons; they were played again and are not counted."""
    seconds: float


class RunState(BaseModel):
    """The mutable state of a run, which `Checkpoints` writes next to the weights that it belongs to."""

    model_config = ConfigDict(extra="forbid")

    run_id: str
    recipe_hash: str
    serial: int = 0
    """Number of the checkpoint, which increases with each one."""
    phase: Phase = Phase.SFT
    sft_epochs: int = 0
    step: int = 0
    """Finished steps of reinforcement learning."""
    age: int = 0
    """How often the weights have changed; staleness is a difference of two ages."""
    version: int = 0
    """The last policy version that was published."""
    ages: dict[int, int] = Field(default_factory=dict)
    """Age of the weights of each published version. The weights of a version that is missing were lost."""
    cursor: int = 0
    """The next slot for which a training group is requested."""
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
    probe: list[list[int]] = Field(default_factory=list)
    probe_is_real: bool = False
    parity_worst: float = 0.0
    parity_batch_worst: float = 0.0
    headline: dict[str, Any] = Field(default_factory=dict)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self.counts[name] = self.counts.get(name, 0) + amount

    def spend(self, name: str, seconds: float) -> None:
        """Add to a clock."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def settled_before(self) -> Callable[[str], bool]:
        """Return a test for settled groups: trained, dropped, or part of a finished warm start or measurement."""
        groups = {*self.trained, *self.dropped}
        prefixes = tuple(evaluation_prefix(name) for name in self.evals)
        if self.phase is not Phase.SFT:
            prefixes += (DEMONSTRATION_PREFIX,)
        return lambda group_id: group_id in groups or group_id.startswith(prefixes)

    def staleness(self, version: int) -> int | None:
        """Return how many weight changes ago `version` was made, or None if its weights were lost."""
        age = self.ages.get(version)
        return None if age is None else self.age - age
