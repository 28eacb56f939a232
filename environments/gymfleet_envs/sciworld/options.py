"""Settings of ScienceWorld."""

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
    """`levels`: by difficulty, the variations solvable in 100 moves. `published`: all 7,207 variations, by task."""
    simplifications: str = ""
    """ScienceWorld's simplifications, for task ids that name none: `easy`, or some of the five, separated by commas."""
    agentgym_numbering: Literal["current", "recorded"] = "current"
    """Numbering of a bare number as a task id: that of AgentGym's server with 1.2.3, or of its recorded episodes."""
    jar: Path | None = None
    """A copy of ScienceWorld 1.2.3's jar to use instead of the one in the wheel."""
    heap_mb: int = Field(default=768, ge=256, le=65536)
    """Memory limit for the objects of one Java virtual machine; a machine that needs more ends."""
    sessions_per_jvm: PositiveInt = 128
    """Limit on open episodes in one virtual machine; more episodes start another machine."""
    episodes_per_jvm: PositiveInt = 2000
    recycle_rss_mb: int = Field(default=1024, ge=64)
    """Limit on a machine's resident memory. A fresh machine has some 100 to 250 MB."""
    call_timeout_s: PositiveFloat = 25.0
    """A virtual machine that does not answer a call within this time, below the runtime's step limit, is killed."""
    start_timeout_s: PositiveFloat = 25.0

    @field_validator("simplifications")
    @classmethod
    def known(cls, value: str) -> str:
        """Put the simplifications in one order, so that equal sets are equal."""
        return simplified(value)
