"""Settings of the SQL environment."""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from gymfleet_envs.environment import Options


class SqlOptions(Options):
    """The limits of a query, and the wording of a task."""

    query_time_s: PositiveFloat = 12.0
    """Time limit of a query. Twice this, for the gold query and the agent's, must be less than the server's
    `step_timeout_s`."""
    max_rows: PositiveInt = 100_000
    max_result_bytes: PositiveInt = 16 * 2**20
    value_bytes: PositiveInt = 2**20
    memory_bytes: PositiveInt = 512 * 2**20
    """Memory of all queries of a worker process together."""
    observation_chars: PositiveInt = 100
    names: Literal["published", "database"] = "published"
    """The names of tables and columns in the question: those of the benchmark's tables file, which AgentGym shows, or
    those of the database itself."""
    evidence: bool = False
    """Whether BIRD's hint precedes the question. AgentGym leaves it out."""
