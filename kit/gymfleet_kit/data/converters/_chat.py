"""What converters of lists of messages share."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, TypeVar

from gymfleet_contracts.conversation import Conversation, Message, Role
from gymfleet_contracts.faults import faults
from pydantic import JsonValue, ValidationError

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, field


class ChatOptions(ConverterOptions):
    """Where things stand in a record."""

    success: str = "success"
    """The key that says whether the task was solved, in records that have it; "" looks for none."""
    reward: str = "reward"
    """The key of the number that the conversation was worth, likewise."""


ChatOptionsT = TypeVar("ChatOptionsT", bound=ChatOptions)


class ChatConverter(Converter[ChatOptionsT]):
    """A record is one conversation: a list of messages under a key."""

    roles: ClassVar[Mapping[str, Role]]
    """What a role is called in the file."""

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[Conversation]:
        """Yield the conversation."""
        options = self.options
        success = field(record, options.success, bool) if record.get(options.success) is not None else None
        reward = field(record, options.reward, float) if record.get(options.reward) is not None else None
        yield Conversation(messages=tuple(self._messages(record)), success=success, reward=reward)

    @property
    @abstractmethod
    def key(self) -> str:
        """Return the key of the list of messages."""

    @abstractmethod
    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message. Raises `UnusableRecord`."""

    def role(self, given: Mapping[str, JsonValue], name: str) -> Role:
        """Return the role of a message, which stands under `name`. Raises `UnusableRecord`."""
        said = field(given, name, str)
        if said not in self.roles:
            raise UnusableRecord(f"{name}: {said[:40]!r} is none of {', '.join(self.roles)}")
        return self.roles[said]

    def _messages(self, record: Mapping[str, JsonValue]) -> Iterator[Message]:
        for number, given in enumerate(field(record, self.key, list), 1):
            if not isinstance(given, dict):
                raise UnusableRecord(f"{self.key}: message {number} is no object")
            try:
                yield self.message(given)
            except (UnusableRecord, ValidationError) as error:
                told = faults(error) if isinstance(error, ValidationError) else error
                raise UnusableRecord(f"{self.key}: message {number}: {told}") from None
