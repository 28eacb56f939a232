"""A conversation to learn from: what people's files hold, in one form."""

from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, StrictBool, Tag, TypeAdapter, model_validator

from gymfleet_contracts._model import WireModel, is_absent
from gymfleet_contracts.session import EnvironmentName, Split
from gymfleet_contracts.trajectory import Finite, ScoredTrajectory

MAX_MESSAGES: Final = 4096
MAX_MESSAGE_CHARS: Final = 1_000_000

Role = Literal["system", "user", "assistant", "tool"]
Label = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]

NEGATIVE: Final = "negative"
"""The label of a conversation in which no tool may be called, as Agent-FLAN has them."""


class Message(WireModel):
    """One message, as the model's chat template is given it."""

    role: Role
    content: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
    learned: StrictBool | None = None
    """Whether it is learned from; where nothing is said, an assistant's message is."""

    @model_validator(mode="after")
    def only_replies_are_learned(self) -> Self:
        """The model writes the assistant's messages, and no others."""
        if self.learned and self.role != "assistant":
            raise ValueError(f"learned: only an assistant's message can be learned from, not one of {self.role!r}")
        return self

    @property
    def teaches(self) -> bool:
        """Return whether it is learned from."""
        return self.role == "assistant" if self.learned is None else self.learned


class ConversationTask(WireModel):
    """The task that a conversation is about, where it is one of an environment's."""

    env: EnvironmentName
    split: Split = "train"
    task_id: Annotated[str, Field(min_length=1, max_length=256)]


class Conversation(WireModel):
    """Messages in order, some of which are learned from, and what is known of their worth."""

    messages: Annotated[tuple[Message, ...], Field(min_length=2, max_length=MAX_MESSAGES)]
    task: ConversationTask | None = None
    success: StrictBool | None = None
    """Whether the task was solved; None where nobody knows."""
    reward: Finite | None = None
    id: Annotated[str, Field(max_length=1024, exclude_if=lambda value: not value)] = ""
    """What it is called in the set that it comes from; "" where it has no name."""
    labels: Annotated[tuple[Label, ...], Field(max_length=16, exclude_if=is_absent)] = ()
    """What a mixture tells apart: `negative`, and `failed` or `explored` where an episode came to nothing or was not
    the path that a search selected."""
    source: Annotated[str, Field(max_length=2048)] = ""
    """Where it comes from, such as a file and the number of a line: for messages to people."""

    @model_validator(mode="after")
    def something_is_learned(self) -> Self:
        """An assistant's message is a reply to another, and at least one of them is learned from."""
        if self.messages[0].role == "assistant":
            raise ValueError("the first message is the assistant's: there is nothing that it replies to")
        if not any(message.teaches for message in self.messages):
            raise ValueError("none of its messages is learned from: that needs one of role 'assistant'")
        return self


def _form(given: object) -> str:
    has_messages = "messages" in given if isinstance(given, dict) else isinstance(given, Conversation)
    return "conversation" if has_messages else "episode"


Record: TypeAlias = ScoredTrajectory | Conversation
"""What there is to learn from."""

RECORDS: Final[TypeAdapter[Record]] = TypeAdapter(
    Annotated[
        Annotated[ScoredTrajectory, Tag("episode")] | Annotated[Conversation, Tag("conversation")],
        Discriminator(_form),
    ]
)
"""Reads a line of a file: a conversation has `messages`, anything else is taken for an episode."""
