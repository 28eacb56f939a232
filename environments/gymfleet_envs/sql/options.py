"""Settings of the SQL environment."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from gymfleet_envs.environment import Options


class SqlOptions(Options):
    """What a query may use up, and how a task is put into words."""

    query_time_s: PositiveFloat = 12.0
    """Twice this, for the gold query and the agent's, must be less than the server's `step_timeout_s`."""
    max_rows: PositiveInt = 100_000
    max_result_bytes: PositiveInt = 16 * 2**20
    value_bytes: PositiveInt = 2**20
    memory_bytes: PositiveInt = 512 * 2**20
    """All queries of a worker process together."""
    observation_chars: PositiveInt = 100
    names: Literal["published", "database"] = "published"
    """How tables and columns are called in the question: as the benchmark's tables file words them, which is what
    AgentGym shows, or as the database itself does."""
    evidence: bool = False
    """Whether BIRD's hint stands before the question. AgentGym leaves it out."""
