"""The differences between two records, by the names that converters give to losses."""

from collections.abc import Iterator, Sequence
from typing import Final

from gymfleet_contracts.conversation import Conversation, Message
from gymfleet_contracts.data_records import DataRecord
from pydantic import JsonValue

TEXT: Final = "text"
FORM: Final = "form"
NEVER_LOST: Final = frozenset({TEXT, FORM})
"""Differences that no converter may name as a loss: other texts in messages, or another kind of record."""


def differences(given: DataRecord, found: DataRecord) -> frozenset[str]:
    """Return the parts that `found` has not as in `given`, except for a record's source."""
    if type(given) is not type(found):
        return frozenset({FORM})
    names = (name for name in type(given).model_fields if name != "source")
    differ = {name for name in names if getattr(given, name) != getattr(found, name)}
    if isinstance(given, Conversation) and isinstance(found, Conversation) and "messages" in differ:
        differ.remove("messages")
        differ |= set(_between(given.messages, found.messages))
    return frozenset(differ)


def _between(given: Sequence[Message], found: Sequence[Message]) -> Iterator[str]:
    if [_words(message) for message in given] != [_words(message) for message in found]:
        yield TEXT
        return
    for one, other in zip(given, found, strict=True):
        if one.role != other.role:
            yield f"role:{one.role}"
        elif one.teaches != other.teaches:
            yield "learned"
        if one.reasoning != other.reasoning:
            yield "reasoning"
        if one.images != other.images:
            yield "images"
        if _ids(one) != _ids(other):
            yield "call_ids"


def _words(message: Message) -> tuple[str, list[JsonValue]]:
    return message.content, [[call.name, call.arguments] for call in message.tool_calls]


def _ids(message: Message) -> tuple[str, ...]:
    return (message.tool_call_id, message.name, *(call.id for call in message.tool_calls))
