"""Conversations named by their task: sets in which an id such as `textcraft_12` gives environment and task."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

from gymfleet_contracts.conversation import Conversation, ConversationTask, Message, Role
from gymfleet_contracts.session import EnvironmentName, Split
from pydantic import JsonValue

from gymfleet_kit.data.converter import ConverterOptions, UnusableRecord, field
from gymfleet_kit.data.converters._chat import ChatConverter
from gymfleet_kit.data.converters._prompt import learned_in, thought_in

_ID: Final = re.compile(r"(?:lmrlgym_)?([a-z][a-z0-9]*)_\d+")
_ALFWORLD: Final = re.compile(r"[a-z_]+-[^/]+/trial_\S+|trial_\S+")
"""AgentGym-RL names the tasks of ALFWorld by their trials."""
OURS: Final[Mapping[str, str]] = {"sqlgym": "sql"}
"""Our names of environments that have another name in the sets."""


class TaskOptions(ConverterOptions):
    """Facts that the ids do not give."""

    env: EnvironmentName | None = None
    """The environment, if the ids do not begin with it."""
    split: Split = "train"
    """The split of the tasks: give `test` for a published test set, and nothing learns from it."""


OptionsT = TypeVar("OptionsT", bound=TaskOptions)


class IdentifiedChat(ChatConverter[OptionsT]):
    """A record has an id, and messages with `from`, `loss` and `value`."""

    id_key: ClassVar[str]
    roles: ClassVar[Mapping[str, Role]] = {"human": "user", "gpt": "assistant"}
    names: ClassVar[Mapping[Role, str]] = {"system": "human", "user": "human", "assistant": "gpt", "tool": "human"}

    @property
    def key(self) -> str:
        """Return the key of the list of messages."""
        return "conversations"

    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message."""
        return human_or_gpt(given, self.role(given, "from"))

    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message; only replies have a loss."""
        loss = message.teaches if message.role == "assistant" else None
        return {"from": self.names[message.role], "loss": loss, "value": message.content}

    def known(self, record: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the id, and the task that it names."""
        said = field(record, self.id_key, str)
        return {"id": said, "task": task_of(said, self.options)}

    def head(self, given: Conversation) -> dict[str, JsonValue]:
        """Return a record with the id of the conversation, or of its task."""
        return {self.id_key: id_of(given)}


def human_or_gpt(given: Mapping[str, JsonValue], role: Role) -> Message:
    """Return a message in ShareGPT's form; only replies have thoughts, or a `loss` or `weight` that counts.

    Raises `UnusableRecord`.
    """
    content = field(given, "value", str)
    if role != "assistant":
        return Message(role=role, content=content)
    return Message(role=role, content=content, reasoning=thought_in(given), learned=learned_in(given))


def id_of(given: Conversation) -> str:
    """Return the id of a conversation, or else that of its task. Raises `UnusableRecord`."""
    if given.id:
        return given.id
    if given.task is None:
        raise UnusableRecord("it has neither an id nor a task; this form calls every record by its task")
    return given.task.task_id


def task_of(said: str, options: TaskOptions) -> ConversationTask:
    """Return the task that an id names. Raises `UnusableRecord`."""
    return ConversationTask(env=options.env or _env_of(said), split=options.split, task_id=said)


def _env_of(said: str) -> str:
    if found := _ID.fullmatch(said):
        return OURS.get(found[1], found[1])
    if _ALFWORLD.fullmatch(said):
        return "alfworld"
    raise UnusableRecord(f"{said[:60]!r} does not say its environment, as in 'textcraft_12'; give it with env")
