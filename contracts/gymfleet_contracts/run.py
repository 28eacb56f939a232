"""What a run reports about itself while it is running."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class RunProgress(BaseModel):
    """`progress.json` of a run directory, and the trainer's `GET /v1/run`: where the run is now.

    Readers ignore fields of newer versions.
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
    """The average cost of a task of a measurement, in the units of a budget."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    env_steps: float
    model_calls: float
    tokens: float
    """Tokens that were sampled, and those of prompts that the engine computed."""
    evaluations: float
    """Values that the reward service was asked for."""
    forks: float = 0.0
    """Forks of sessions: what is known about one branch is known to the others."""


class Place(BaseModel):
    """The place of a record: a line of a file to which lines are only appended."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    file: Annotated[str, Field(pattern=r"^trajectories/[^/]+\.jsonl$")]
    """Relative to the run directory."""
    offset: Annotated[int, Field(ge=0)]
    """Bytes before the line."""
    length: Annotated[int, Field(ge=1)]
    """Bytes of the line, with the newline."""


class RunEvent(BaseModel):
    """An event of a run, in the order in which events happened: a line of `events.jsonl`.

    No event is ever removed. A restarted trainer continues from its last checkpoint and records `run_resumed`. The
    events of the work that it repeats occur again; of two such events, the later one counts.
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
    """Of `episodes`: the place of each, by its trajectory id."""


class RunEvents(BaseModel):
    """The trainer's `GET /v1/run/events`: the events after a number, as many as one answer holds."""

    events: tuple[RunEvent, ...]
    last: int
    """The number of the run's newest event: if it is greater than that of the last event here, there are more."""
