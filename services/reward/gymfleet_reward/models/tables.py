"""The reward models of a service, as its operator sets them in `GYMFLEET_REWARD_MODELS`."""

from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from gymfleet_kit.chat_endpoint import ShownUrl
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator

ModelName: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Scores: TypeAlias = Literal["episode", "turns"]


class UnusableModel(Exception):
    """A reward model cannot be used as it is; the message says what is wrong with it."""


class ModelAway(Exception):
    """A reward model is not there, or is being replaced: another attempt may find it. The message says which."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    scores: Scores = "episode"
    """`episode`: one number for each episode, by a head for sequence classification; `turns`: one for each turn, by a
    head for token classification. Either head has one label."""
    max_tokens: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """Tokens of the longest transcript that the model takes."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 8
    """Transcripts that the model takes at once."""
    step_tag: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """If `scores` is `turns`: one token, such as `<extra_0>`, that is put after each reply, and at which the reply's
    number is read. Without it the number is read at the token that ends the reply."""

    @model_validator(mode="after")
    def only_turns_have_a_tag(self) -> Self:
        """Reject `step_tag` without `scores = "turns"`."""
        if self.step_tag is not None and self.scores == "episode":
            raise ValueError('step_tag is for scores = "turns"')
        return self


class EmbeddedTable(_Table):
    """A model that runs in the reward service itself."""

    kind: Literal["embedded"]
    path: Path
    """The model's directory, in Hugging Face's form."""
    devices: Annotated[tuple[Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?)$")], ...], Field(min_length=1)] = (
        "cpu",
    )
    """Each device has a copy of the model: `["cuda:0", "cuda:1"]`."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of weights and computation."""
    reload: bool = False
    """The directory may be missing when the service starts, and may be replaced while it runs: each batch is scored by
    the weights that are there when the batch is requested."""


class ServedTable(_Table):
    """A model behind vLLM's server, started with `--runner pooling`."""

    kind: Literal["vllm"]
    url: ShownUrl
    """URL of the server: `http://reward-model:8000`."""
    model: Annotated[str, Field(min_length=1, max_length=256)]
    """The model's name on the server."""
    tokenizer: Path
    """A directory with the model's tokenizer and chat template, with which transcripts are written here."""
    key_file: Path | None = None
    """A file with the API key, sent as a bearer token."""
    timeout_s: PositiveFloat = 20.0
    """Time limit for one answer."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Requests under way at once; more wait."""


ModelTable: TypeAlias = Annotated[EmbeddedTable | ServedTable, Field(discriminator="kind")]
