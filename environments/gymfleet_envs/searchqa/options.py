"""Settings of SearchQA."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, HttpUrl, PositiveFloat, PositiveInt, model_validator

from gymfleet_envs.environment import Options

Search = Literal["bm25", "dense", "hybrid"]
Attempts = PositiveInt | Literal["auto", "unlimited"]


class SearchQAOptions(Options):
    """How passages are found and shown, and how answers count."""

    search: Search = "bm25"
    """`dense` compares vectors of an embedding model, and `hybrid` merges both rankings. They need an imported corpus:
    its vectors are computed by `gymfleet data import` with the same options."""
    results: Annotated[int, Field(ge=1, le=20)] = 3
    """Passages that a search shows; AgentGym's shows three."""
    passage_chars: Annotated[int, Field(ge=100, le=100_000)] = 4_000
    """Of a longer passage the rest is left out."""
    attempts: Attempts = "auto"
    """Wrong answers that end the episode. `auto`: 1 for generated tasks; for imported ones `unlimited`, as in
    AgentGym, where only turns are limited."""
    reward: Literal["exact_match", "f1"] = "exact_match"
    """With `f1` the first answer ends the episode. The score is exact match either way."""
    embeddings_url: HttpUrl | None = None
    """The base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`; asked for `/embeddings`."""
    embeddings_model: str = ""
    """The name of the model there."""
    embeddings_key_file: Path | None = None
    """A file that holds the server's API key and nothing else."""
    embeddings_timeout_s: PositiveFloat = 5.0
    """How long one request may take. It is tried twice."""
    query_prefix: str = ""
    """Stands before each query that is embedded, such as `query: ` for E5."""
    passage_prefix: str = ""
    """Stands before each passage that is embedded, such as `passage: ` for E5."""

    @model_validator(mode="after")
    def vectors_have_a_source(self) -> Self:
        """Only an embedding model makes vectors."""
        if self.search != "bm25" and not (self.embeddings_url and self.embeddings_model):
            raise ValueError(f"search={self.search} needs embeddings_url and embeddings_model")
        return self

    @model_validator(mode="after")
    def parts_of_an_answer_are_paid_once(self) -> Self:
        """F1 of every attempt would add up."""
        if self.reward == "f1" and self.attempts not in ("auto", 1):
            raise ValueError("reward=f1 pays for one answer: attempts must be 1")
        return self
