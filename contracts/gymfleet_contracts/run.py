"""What a run says of itself while it goes on."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class RunProgress(BaseModel):
    """`progress.json` of a run directory, and the trainer's `GET /v1/run`: where the run is now.

    Fields of newer versions are left aside by those who read it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    run_id: str
    phase: str
    step: int = 0
    total: int = 0
    unit: str = ""
    rate: float | None = None
    """Units per second."""
    eta_s: float | None = None
    message: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)
    updated_at: float = 0.0
    """Unix seconds."""


class TaskCost(BaseModel):
    """What a task of a measurement took on average, in the units of a budget."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    env_steps: float
    model_calls: float
    tokens: float
    """Sampled ones."""
    evaluations: float
    """Values that the reward service was asked for."""
    forks: float = 0.0
    """Forks of sessions: what is known of one branch is known to the others."""


class Place(BaseModel):
    """Where a record is: a line of a file that grows at its end alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    file: Annotated[str, Field(pattern=r"^trajectories/[^/]+\.jsonl$")]
    """Relative to the run directory."""
    offset: Annotated[int, Field(ge=0)]
    """Bytes before the line."""
    length: Annotated[int, Field(ge=1)]
    """Bytes of the line, with the newline."""


class RunEvent(BaseModel):
    """One thing that happened in a run, in the order in which it happened: a line of `events.jsonl`.

    Nothing is ever taken back. A trainer that is restarted goes on from its last checkpoint, and says so with
    `run_resumed`; what it does again happens again, so that the later one of two events counts.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    number: Annotated[int, Field(ge=1)]
    """From 1, without gaps."""
    time: float
    """Unix seconds."""
    kind: str
    """run_started, run_resumed, stage_begun, episodes, checkpoint, stage_ended, done, interrupted, failed, or the kind
    of a line of `metrics.jsonl`, such as rl_step."""
    stage: str | None = None
    data: dict[str, JsonValue] = Field(default_factory=dict)
    places: dict[str, Place] = Field(default_factory=dict)
    """Of `episodes`: where each is, by its trajectory id."""


class RunEvents(BaseModel):
    """The trainer's `GET /v1/run/events`: those after a number, as many as one answer holds."""

    events: tuple[RunEvent, ...]
    last: int
    """The number of the newest event of the run: there are more if it is beyond the last one here."""
