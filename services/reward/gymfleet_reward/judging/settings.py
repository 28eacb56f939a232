"""The judges that operators set in `GYMFLEET_REWARD_JUDGES`."""

from typing import Annotated

from gymfleet_kit.chat_endpoint import ModelEndpoint
from pydantic import Field, PositiveFloat, PositiveInt, StrictBool

JudgeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class JudgeSettings(ModelEndpoint):
    """A chat completions endpoint that judges, and what it may cost."""

    timeout_s: PositiveFloat = 60.0
    """Time limit for one answer, for which there are up to three tries."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 8
    """Calls that a process makes at once; more wait."""
    json_schema: StrictBool = False
    """Ask for the verdict's JSON Schema with `response_format`, if the endpoint supports it."""
    requests_per_minute: PositiveFloat | None = None
    """Maximum rate: between requests, tries included, there is at least the pause that this leaves."""
    max_calls: PositiveInt | None = None
    """Requests that a process may make in its lifetime, tries included."""
    max_tokens: PositiveInt | None = None
    """Tokens of prompts and answers that a process may use in its lifetime. If the endpoint does not report them, a
    prompt counts one token for each byte, and an answer counts the most that it might have had."""
