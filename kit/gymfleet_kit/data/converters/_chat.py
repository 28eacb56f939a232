"""The common part of converters of message lists."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from gymfleet_contracts.conversation import Conversation, Message, Role
from gymfleet_contracts.data_records import DataRecord, Preference, form_of
from gymfleet_contracts.faults import faults
from pydantic import JsonValue, ValidationError

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written, field
from gymfleet_kit.data.converters._functions import CALLS, declarations, declared_in
from gymfleet_kit.data.converters._prompt import prompt_of

FACTS: Final = ("task", "success", "reward", "id", "labels", "tools")
"""The facts about a conversation in addition to its messages."""
_FILES: Final = (("images", "<image>"), ("image", "<image>"), ("videos", "<video>"), ("audios", "<audio>"))
"""Keys of files beside the messages, as in LLaMA-Factory and LLaVA, and their marks in the texts."""
_REPLIES: Final = ("chosen", "rejected")
NOTHING: Final[Mapping[str, Any]] = {name: Conversation.model_fields[name].default for name in FACTS}
"""The values of facts that are not known."""


class ChatOptions(ConverterOptions):
    """The keys of a record."""

    id: str = "id"
    """The key of the record's id, in records that have one; "" looks for none."""
    success: str = "success"
    """The key that says whether the task was solved, in records that have it; "" looks for none."""
    reward: str = "reward"
    """The key of the conversation's reward, in records that have it; "" looks for none."""
    tools_key: str = "tools"
    """The key of the functions that may be called, in records that have it: a list of OpenAI's declarations, or one as
    JSON text; "" looks for none. A record that lacks it may have them under `functions`, OpenAI's earlier name."""
    system: str = "system"
    """The key of the system's text before the messages, as in LLaMA-Factory and Anthropic, in records that have it; ""
    looks for none."""


OptionsT = TypeVar("OptionsT", bound=ConverterOptions)
KeyedT = TypeVar("KeyedT", bound=ChatOptions)


class ChatConverter(Converter[OptionsT]):
    """A record is one conversation: a list of messages under a key."""

    roles: ClassVar[Mapping[str, Role]]
    """Our role for each role in the file."""
    names: ClassVar[Mapping[Role, str]]
    """The name of each role in written records; a role that the form lacks becomes another, which is a loss."""
    marks: ClassVar[bool] = True
    """Whether messages state that they are learned from."""
    calls: ClassVar[bool] = False
    """Whether messages may call functions."""
    calls_beside: ClassVar[bool] = False
    """Whether messages have their calls beside their text, under OpenAI's keys."""
    apart: ClassVar[frozenset[str]] = frozenset()
    """Those of `reasoning`, `call_ids` and `images` for which messages have a place."""

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation."""
        yield Conversation(messages=tuple(self._messages(record)), **self.known(record))

    def write(self, one: DataRecord) -> Written:
        """Return the record of a conversation."""
        given = conversation_in(one)
        if not self.calls:
            require_no_calls(given.messages)
        record = self.head(given)
        record[self.key] = [self.written(message) for message in given.messages]
        found = self.known(record)
        lost = {name for name in FACTS if getattr(given, name) != found.get(name, NOTHING[name])}
        lost |= {f"role:{role}" for role in {message.role for message in given.messages} if self._changes(role)}
        if not self.marks and any(message.role == "assistant" and not message.teaches for message in given.messages):
            lost.add("learned")
        lost |= beside(given.messages) - self.apart
        return Written(record, frozenset(lost))

    @property
    @abstractmethod
    def key(self) -> str:
        """Return the key of the list of messages."""

    @abstractmethod
    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message. Raises `UnusableRecord`."""

    @abstractmethod
    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message in the file's form."""

    @abstractmethod
    def known(self, record: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the facts in a record besides its messages: some of `FACTS`. Raises `UnusableRecord`."""

    @abstractmethod
    def head(self, given: Conversation) -> dict[str, JsonValue]:
        """Return a record with as many facts about a conversation as its form can hold. Raises `UnusableRecord`."""

    def role(self, given: Mapping[str, JsonValue], name: str) -> Role:
        """Return the role of a message, which is under the key `name`. Raises `UnusableRecord`."""
        said = field(given, name, str)
        if said not in self.roles:
            raise UnusableRecord(f"{name}: {said[:40]!r} is none of {', '.join(self.roles)}")
        return self.roles[said]

    def _changes(self, role: Role) -> bool:
        return self.roles[self.names[role]] != role

    def _messages(self, record: Mapping[str, JsonValue]) -> Iterator[Message]:
        for number, given in enumerate(field(record, self.key, list), 1):
            yield self._message(given, f"{self.key}: message {number}")

    def _message(self, given: JsonValue, place: str) -> Message:
        """Return the message at a place, which errors name."""
        if not isinstance(given, dict):
            raise UnusableRecord(f"{place} is no object")
        if not self.calls_beside and (called := next((key for key in CALLS if given.get(key)), "")):
            raise UnusableRecord(f"{place}: {called}: this form has no calls beside a text; `messages` has")
        try:
            return self.message(given)
        except (UnusableRecord, ValidationError) as error:
            told = faults(error) if isinstance(error, ValidationError) else error
            raise UnusableRecord(f"{place}: {told}") from None


class KeyedChat(ChatConverter[KeyedT]):
    """A converter for facts about a conversation under keys given in the options.

    A record with the objects `chosen` and `rejected`, each a message, is a preference, as in LLaMA-Factory.
    """

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation, or the preference."""
        if not all(isinstance(record.get(name), dict) for name in _REPLIES):
            yield from super().convert(record)
            return
        if self.known(record).get("tools"):
            raise UnusableRecord("tools: a preference declares no functions")
        prompt = tuple(self._messages(record))
        chosen, rejected = (self._message(record[name], name) for name in _REPLIES)
        prompt_of([*prompt, chosen, rejected])
        yield Preference(prompt=prompt, chosen=(chosen,), rejected=(rejected,))

    def write(self, one: DataRecord) -> Written:
        """Return the record of a conversation, or of a preference between two messages."""
        if not isinstance(one, Preference):
            return super().write(one)
        if len(one.chosen) > 1 or len(one.rejected) > 1:
            raise UnusableRecord("the replies of this form are single messages; `trl` has several")
        prompt_of([*one.prompt, *one.chosen, *one.rejected])
        record: dict[str, JsonValue] = {self.key: [self.written(message) for message in one.prompt]}
        record |= {
            name: self.written(reply) for name, (reply,) in zip(_REPLIES, (one.chosen, one.rejected), strict=True)
        }
        return Written(record, frozenset({"task"} if one.task else ()))

    def known(self, record: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the facts under the keys."""
        options = self.options
        found: dict[str, Any] = {}
        if record.get(options.id) is not None:
            found["id"] = field(record, options.id, str)
        if record.get(options.success) is not None:
            found["success"] = field(record, options.success, bool)
        if record.get(options.reward) is not None:
            found["reward"] = field(record, options.reward, float)
        declared = record.get(options.tools_key)
        if declared is None and options.tools_key:
            declared = record.get("functions")
        if declared is not None and (tools := declared_in(declared)):
            found["tools"] = tools
        return found

    def _messages(self, record: Mapping[str, JsonValue]) -> Iterator[Message]:
        messages = list(super()._messages(record))
        for name, mark in _FILES:
            if record.get(name) and any(mark in message.content for message in messages):
                raise UnusableRecord(
                    f"{name}: files beside the messages are not read; `messages` reads image_url parts"
                )
        if record.get(self.options.system):
            said = Message(role="system", content=field(record, self.options.system, str))
            if not messages or messages[0].role != "system":
                messages.insert(0, said)
            elif messages[0] != said:
                raise UnusableRecord(
                    f"{self.options.system}: the first message is the system's too, and says another thing"
                )
        return iter(messages)

    def head(self, given: Conversation) -> dict[str, JsonValue]:
        """Return the facts that have a key."""
        options = self.options
        said: tuple[tuple[str, JsonValue], ...] = (
            (options.id, given.id or None), (options.success, given.success), (options.reward, given.reward),
            (options.tools_key, declarations(given.tools) or None),
        )  # fmt: skip
        return {key: value for key, value in said if key and value is not None}


def conversation_in(one: DataRecord) -> Conversation:
    """Return a record if it is a conversation. Raises `UnusableRecord` for any other."""
    if not isinstance(one, Conversation):
        raise UnusableRecord(f"this form holds conversations; {form_of(one)} are none")
    return one


def require_no_calls(messages: Sequence[Message]) -> None:
    """Raise `UnusableRecord` for messages that call functions, for forms that have no place for calls."""
    if number := next((number for number, message in enumerate(messages, 1) if message.tool_calls), None):
        raise UnusableRecord(f"message {number} calls a function, and this form holds texts: write it as `messages`")


def beside(messages: Sequence[Message]) -> frozenset[str]:
    """Return the parts of messages besides their texts and calls, by the names of losses."""
    found = {name for name in ("reasoning", "images") if any(getattr(message, name) for message in messages)}
    ids = (message.tool_call_id or message.name or any(call.id for call in message.tool_calls) for message in messages)
    return frozenset(found | {"call_ids"} if any(ids) else found)
