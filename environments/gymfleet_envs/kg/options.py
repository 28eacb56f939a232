"""Settings of the KG environment."""

from typing import Annotated

from pydantic import Field, HttpUrl, PositiveInt

from gymfleet_envs.environment import Options


class KgOptions(Options):
    """The endpoint that answers AgentBench's own questions, and its limits."""

    endpoint: HttpUrl | None = None
    """A SPARQL endpoint of Freebase, such as `http://freebase:3001/sparql`, for AgentBench's own questions only."""
    query_timeout_s: Annotated[float, Field(gt=0, le=300)] = 8.0
    """Time limit of one query, once it is sent; a quarter of it for the wait for a free connection, and for opening
    one. A step makes at most two queries: three times this must be less than the server's `step_timeout_s`."""
    connections: Annotated[int, Field(ge=1, le=1024)] = 32
    """The most queries that one process makes at once; others wait for their turn."""
    max_rows: PositiveInt = 100_000
    """The most members of an answer. A variable with more is a wrong answer, and is not fetched."""
    max_response_bytes: PositiveInt = 32 * 2**20
