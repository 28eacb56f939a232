"""Settings of SearchQA."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, HttpUrl, PositiveFloat, PositiveInt, model_validator

from gymfleet_envs.environment import Options

Search = Literal["bm25", "dense", "hybrid"]
Attempts = PositiveInt | Literal["auto", "unlimited"]


class SearchQAOptions(Options):
    """Options for finding and showing passages, and for scoring answers."""

    search: Search = "bm25"
    """`dense` compares vectors of an embedding model, and `hybrid` merges both rankings. Both need an imported corpus:
    `gymfleet data import` computes its vectors with the same options."""
    results: Annotated[int, Field(ge=1, le=20)] = 3
    """Number of passages that a search shows; AgentGym's search shows three."""
    passage_chars: Annotated[int, Field(ge=100, le=100_000)] = 4_000
    """The most characters shown of a passage; the rest is left out."""
    attempts: Attempts = "auto"
    """Number of wrong answers that ends the episode. `auto`: 1 for generated tasks; `unlimited` for imported ones, as
    in AgentGym, where only turns are limited."""
    reward: Literal["exact_match", "f1"] = "exact_match"
    """With `f1` the first answer ends the episode. The score is exact match either way."""
    embeddings_url: HttpUrl | None = None
    """The base URL of an OpenAI-compatible server, such as `http://127.0.0.1:8000/v1`; requests go to `/embeddings`."""
    embeddings_model: str = ""
    """The name of the model on that server."""
    embeddings_key_file: Path | None = None
    """A file that holds the server's API key and nothing else."""
    embeddings_timeout_s: PositiveFloat = 5.0
    """Time limit of one request, which is tried twice."""
    query_prefix: str = ""
    """Text before each embedded query, such as `query: ` for E5."""
    passage_prefix: str = ""
    """Text before each embedded passage, such as `passage: ` for E5."""

    @model_validator(mode="after")
    def vectors_have_a_source(self) -> Self:
        """Require an embedding model for a search by vectors."""
        if self.search != "bm25" and not (self.embeddings_url and self.embeddings_model):
            raise ValueError(f"search={self.search} needs embeddings_url and embeddings_model")
        return self

    @model_validator(mode="after")
    def parts_of_an_answer_are_paid_once(self) -> Self:
        """Allow F1 for one attempt only: otherwise, the F1 of every attempt would add up."""
        if self.reward == "f1" and self.attempts not in ("auto", 1):
            raise ValueError("reward=f1 pays for one answer: attempts must be 1")
        return self
