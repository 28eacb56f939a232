"""Who judges, as operators set it in `GYMFLEET_REWARD_JUDGES`."""

from typing import Annotated

from gymfleet_kit.chat_endpoint import ModelEndpoint
from pydantic import Field, PositiveFloat, PositiveInt, StrictBool

JudgeName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class JudgeSettings(ModelEndpoint):
    """A chat completions endpoint that judges, and what it may cost."""

    timeout_s: PositiveFloat = 60.0
    """For one answer, of which there are up to three tries."""
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 8
    """Calls that a process makes at once; more wait."""
    json_schema: StrictBool = False
    """Ask for the verdict's JSON Schema by `response_format`, where the endpoint knows that."""
    requests_per_minute: PositiveFloat | None = None
    """Requests follow each other with at least the pause that this leaves, tries included."""
    max_calls: PositiveInt | None = None
    """Requests that a process may make in its life, tries included."""
    max_tokens: PositiveInt | None = None
    """Tokens of prompts and answers that a process may use in its life. An answer whose endpoint does not say how many
    it took counts as one for each byte of the prompt and all that the answer might have had."""
