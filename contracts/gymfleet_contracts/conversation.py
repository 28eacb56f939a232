"""A conversation to learn from: one form for the contents of people's files."""

import json
from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, JsonValue, StrictBool, Tag, TypeAdapter, model_validator

from gymfleet_contracts._model import WireModel, is_absent
from gymfleet_contracts.observation import MAX_PARTS, ImageFile
from gymfleet_contracts.session import TOOL_NAME, EnvironmentName, Split, Tool
from gymfleet_contracts.trajectory import Finite, ScoredTrajectory

MAX_MESSAGES: Final = 4096
MAX_MESSAGE_CHARS: Final = 1_000_000
MAX_CALLS: Final = 128
"""Maximum number of calls in one message, and of functions that a conversation declares."""

Role = Literal["system", "user", "assistant", "tool"]
Label = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")]

NEGATIVE: Final = "negative"
"""The label of a conversation in which no tool may be called, as in Agent-FLAN."""


_CallId = Annotated[str, Field(max_length=256, exclude_if=lambda value: not value)]


class MadeCall(WireModel):
    """A call of a function in a message."""

    name: Annotated[str, Field(pattern=TOOL_NAME)]
    arguments: dict[str, JsonValue] = Field(default_factory=dict)
    id: _CallId = ""
    """The id by which an answer refers to the call, if the data has one; templates are given gymfleet's own ids."""


class Message(WireModel):
    """One message, as it is passed to the model's chat template."""

    role: Role
    content: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
    images: Annotated[tuple[ImageFile, ...], Field(max_length=MAX_PARTS, exclude_if=is_absent)] = ()
    """The images that the user or a tool shows, in the order of their marks in the content."""
    reasoning: Annotated[str, Field(max_length=MAX_MESSAGE_CHARS, exclude_if=lambda value: not value)] = ""
    """The assistant's thoughts before the message, if they are separate from the content."""
    tool_calls: Annotated[tuple[MadeCall, ...], Field(max_length=MAX_CALLS, exclude_if=is_absent)] = ()
    """The assistant's calls of functions, which follow the content."""
    tool_call_id: _CallId = ""
    """The id of the call that a tool's message answers; by default the last call."""
    name: _CallId = ""
    """The function whose result a tool's message is, if the data names it."""
    learned: StrictBool | None = None
    """Whether the message is learned from; by default, only an assistant's message is."""

    @model_validator(mode="after")
    def only_replies_are_learned(self) -> Self:
        """Require that only an assistant's message is learned from: the model writes no others."""
        if self.learned and self.role != "assistant":
            raise ValueError(f"learned: only an assistant's message can be learned from, not one of {self.role!r}")
        return self

    @model_validator(mode="after")
    def calls_and_answers_have_their_roles(self) -> Self:
        """Require that only the assistant thinks and calls, and that only a tool answers."""
        if self.role != "assistant" and (self.reasoning or self.tool_calls):
            given = "tool_calls" if self.tool_calls else "reasoning"
            raise ValueError(f"{given}: only an assistant's message has any, not one of {self.role!r}")
        if self.role != "tool" and (self.tool_call_id or self.name):
            given = "tool_call_id" if self.tool_call_id else "name"
            raise ValueError(f"{given}: only a tool's message answers a call, not one of {self.role!r}")
        return self

    @model_validator(mode="after")
    def images_have_their_marks(self) -> Self:
        """Require a mark in the content for each image, in order, and no images from other roles than user and tool."""
        if self.images and self.role not in ("user", "tool"):
            raise ValueError(f"images: a user or a tool shows them, not {self.role!r}")
        place = 0
        for number, image in enumerate(self.images, 1):
            place = self.content.find(image.mark, place) + len(image.mark)
            if place < len(image.mark):
                raise ValueError(f"images: the content has no mark {image.mark} of image {number}, in their order")
        marks = {image.mark for image in self.images}
        if sum(self.content.count(mark) for mark in marks) != len(self.images):
            raise ValueError("images: the content has more marks of them than there are images")
        return self

    @property
    def teaches(self) -> bool:
        """Return whether the message is learned from."""
        return self.role == "assistant" if self.learned is None else self.learned

    @property
    def text(self) -> str:
        """Return thoughts, content and calls (as JSON) as one text, for code that counts or compares."""
        calls = [
            json.dumps({"name": one.name, "arguments": one.arguments}, ensure_ascii=False) for one in self.tool_calls
        ]
        parts = (self.reasoning, self.content, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls))
        return "\n".join(part for part in parts if part)


class ConversationTask(WireModel):
    """The task that a conversation is about, if it is a task of an environment."""

    env: EnvironmentName
    split: Split = "train"
    task_id: Annotated[str, Field(min_length=1, max_length=256)]


class Conversation(WireModel):
    """Messages in order, some of which are learned from, and what is known about the outcome."""

    messages: Annotated[tuple[Message, ...], Field(min_length=2, max_length=MAX_MESSAGES)]
    tools: Annotated[tuple[Tool, ...], Field(max_length=MAX_CALLS, exclude_if=is_absent)] = ()
    """The functions that may be called, which the model's chat template declares."""
    task: ConversationTask | None = None
    success: StrictBool | None = None
    """Whether the task was solved; None if unknown."""
    reward: Finite | None = None
    id: Annotated[str, Field(max_length=1024, exclude_if=lambda value: not value)] = ""
    """The conversation's name in the set that it comes from; "" if it has none."""
    labels: Annotated[tuple[Label, ...], Field(max_length=16, exclude_if=is_absent)] = ()
    """Labels by which a mixture distinguishes conversations: `negative`; `failed` for an episode that did not solve its
    task; `explored` for one that is not the path that a search selected."""
    source: Annotated[str, Field(max_length=2048)] = ""
    """Where the conversation comes from, such as a file and a line number, for messages to people."""

    @model_validator(mode="after")
    def something_is_learned(self) -> Self:
        """Require that an assistant's message replies to another, and that at least one message is learned from."""
        if self.messages[0].role == "assistant":
            raise ValueError("the first message is the assistant's: there is nothing that it replies to")
        if not any(message.teaches for message in self.messages):
            raise ValueError("none of its messages is learned from: that needs one of role 'assistant'")
        return self

    @model_validator(mode="after")
    def tools_are_told_apart(self) -> Self:
        """Require that all functions have different names."""
        names = [tool.name for tool in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"tools: two are called {', '.join(twice)}")
        return self


def _form(given: object) -> str:
    has_messages = "messages" in given if isinstance(given, dict) else isinstance(given, Conversation)
    return "conversation" if has_messages else "episode"


Record: TypeAlias = ScoredTrajectory | Conversation
"""A record to learn from."""

RECORDS: Final[TypeAdapter[Record]] = TypeAdapter(
    Annotated[
        Annotated[ScoredTrajectory, Tag("episode")] | Annotated[Conversation, Tag("conversation")],
        Discriminator(_form),
    ]
)
"""Reads a line of a file: a record with `messages` is a conversation, any other is read as an episode."""
