"""The records of data files: episodes, conversations, pairs of replies of which one is preferred, and bare tasks."""

from typing import Annotated, Final, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, JsonValue, Tag, TypeAdapter, model_validator

from gymfleet_contracts._model import WireModel, is_absent
from gymfleet_contracts.conversation import MAX_MESSAGES, Conversation, ConversationTask, Message
from gymfleet_contracts.trajectory import ScoredTrajectory

Form = Literal["episodes", "conversations", "preferences", "rows"]
"""The forms of records, each named like a file of such records."""

_Messages = Annotated[tuple[Message, ...], Field(min_length=1, max_length=MAX_MESSAGES)]
_Name = Annotated[str, Field(max_length=1024)]
_Source = Annotated[str, Field(max_length=2048)]


class Preference(WireModel):
    """Two continuations of the same messages, one of which is preferred: a record for DPO and for reward models."""

    prompt: _Messages
    chosen: _Messages
    rejected: _Messages
    task: ConversationTask | None = None
    source: _Source = ""
    """See `Conversation.source`."""

    @model_validator(mode="after")
    def replies_differ(self) -> Self:
        """Require that both replies begin with an assistant's message, and that they differ."""
        for name, reply in (("chosen", self.chosen), ("rejected", self.rejected)):
            if reply[0].role != "assistant":
                raise ValueError(f"{name}: its first message is of {reply[0].role!r}; a reply is the assistant's")
        if self.chosen == self.rejected:
            raise ValueError("chosen and rejected say the same: nothing is preferred")
        return self


class RewardRule(WireModel):
    """How a reply to a task is scored, as in verl's rows."""

    style: Annotated[str, Field(max_length=64)] = "rule"
    ground_truth: JsonValue = None


class TaskRow(WireModel):
    """A task without replies, such as a row of verl: a prompt and its gold, or the id of an environment's task."""

    prompt: Annotated[tuple[Message, ...], Field(max_length=MAX_MESSAGES)] = ()
    data_source: _Name = ""
    """The name that selects the scorer."""
    ability: Annotated[_Name, Field(exclude_if=lambda value: not value)] = ""
    reward_model: Annotated[RewardRule | None, Field(exclude_if=is_absent)] = None
    extra_info: Annotated[dict[str, JsonValue], Field(exclude_if=lambda value: not value)] = Field(default_factory=dict)
    task: ConversationTask | None = None
    source: _Source = ""
    """See `Conversation.source`."""

    @model_validator(mode="after")
    def something_is_asked(self) -> Self:
        """Require a prompt, or a task of an environment."""
        if not self.prompt and self.task is None:
            raise ValueError("neither prompt nor task: a row says what is to be done")
        return self


DataRecord: TypeAlias = ScoredTrajectory | Conversation | Preference | TaskRow
"""A record of a data file."""


def form_of(record: DataRecord) -> Form:
    """Return the form of a record."""
    return _FORMS[type(record)]


def _tag(given: object) -> str:
    if not isinstance(given, dict):
        return _FORMS.get(type(given), "rows")
    if "messages" in given:
        return "conversations"
    if "chosen" in given or "rejected" in given:
        return "preferences"
    return "episodes" if "trajectory" in given else "rows"


_FORMS: Final[dict[type, Form]] = {
    ScoredTrajectory: "episodes", Conversation: "conversations", Preference: "preferences", TaskRow: "rows",
}  # fmt: skip
DATA_RECORDS: Final[TypeAdapter[DataRecord]] = TypeAdapter(
    Annotated[
        Annotated[ScoredTrajectory, Tag("episodes")]
        | Annotated[Conversation, Tag("conversations")]
        | Annotated[Preference, Tag("preferences")]
        | Annotated[TaskRow, Tag("rows")],
        Discriminator(_tag),
    ]
)
"""Reads a record of a file. Its keys `messages`, `chosen`, `rejected` or `trajectory` tell the form; a row has none."""
