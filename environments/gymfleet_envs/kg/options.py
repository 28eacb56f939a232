"""Settings of the KG environment."""

from typing import Annotated

from pydantic import Field, HttpUrl, PositiveInt

from gymfleet_envs.environment import Options


class KgOptions(Options):
    """Where AgentBench's own questions are answered, and what that may take."""

    endpoint: HttpUrl | None = None
    """A SPARQL endpoint of Freebase, such as `http://freebase:3001/sparql`: for AgentBench's own questions alone."""
    query_timeout_s: Annotated[float, Field(gt=0, le=300)] = 9.0
    """For one query. A step makes at most two, each of which may be tried twice where the endpoint cannot be reached:
    half of the server's `step_timeout_s` is enough."""
    connections: Annotated[int, Field(ge=1, le=1024)] = 32
    """Queries of one process at once; others wait for their turn within their own time."""
    max_rows: PositiveInt = 100_000
    """Members of an answer. A variable with more is a wrong answer, and is not fetched."""
    max_response_bytes: PositiveInt = 32 * 2**20
