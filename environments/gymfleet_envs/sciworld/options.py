"""What an operator can set."""

from pathlib import Path
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from gymfleet_envs.environment import Options
from gymfleet_envs.sciworld.tasks import simplified


class SciWorldOptions(Options):
    """Which tasks are offered, and how large the Java virtual machines may become.

    A machine takes no new episode once it has served `episodes_per_jvm` or is larger
    than `recycle_rss_mb`; it ends with its last episode, and another one takes over.
    """

    tasks: Literal["levels", "published"] = "levels"
    """`levels`: by difficulty, what can be solved in 100 moves. `published`: all 7,207 variations, by task."""
    simplifications: str = ""
    """ScienceWorld's, for task ids that name none: `easy`, or some of its five, separated by commas."""
    agentgym_numbering: Literal["current", "recorded"] = "current"
    """What a bare number means as a task id: that of AgentGym's server with 1.2.3, or that of its recorded episodes."""
    jar: Path | None = None
    """Another copy of ScienceWorld 1.2.3's jar than the one in the wheel."""
    heap_mb: int = Field(default=768, ge=256, le=65536)
    """The most that the objects of one Java virtual machine may take; one that needs more ends."""
    sessions_per_jvm: PositiveInt = 128
    """Open episodes in one virtual machine; more start another one."""
    episodes_per_jvm: PositiveInt = 2000
    recycle_rss_mb: int = Field(default=1024, ge=64)
    """Resident memory. A fresh machine has some 100 to 250 MB."""
    call_timeout_s: PositiveFloat = 25.0
    """A virtual machine that does not answer a call for so long is killed. Below the runtime's limit of a step."""
    start_timeout_s: PositiveFloat = 25.0

    @field_validator("simplifications")
    @classmethod
    def known(cls, value: str) -> str:
        """In one order, so that equal sets are equal."""
        return simplified(value)
