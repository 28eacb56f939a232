"""What a run says of itself while it goes on."""

from pydantic import BaseModel, ConfigDict, Field


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
