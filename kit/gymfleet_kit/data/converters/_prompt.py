"""Plain lists of messages: prompts, and the replies of preferences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from gymfleet_contracts.conversation import Message
from gymfleet_contracts.faults import faults
from pydantic import JsonValue, ValidationError

from gymfleet_kit.data.converter import UnusableRecord, field
from gymfleet_kit.data.converters._functions import CALLS

THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking")
"""The keys under which published messages have the assistant's thoughts."""


def prompt_in(record: Mapping[str, JsonValue], name: str = "prompt") -> tuple[Message, ...]:
    """Return the messages of a field; a plain text is the user's. Raises `UnusableRecord`."""
    return messages_in(record, name, "user")


def messages_in(record: Mapping[str, JsonValue], name: str, role: str) -> tuple[Message, ...]:
    """Return the messages of a field; a plain text is a message of role `role`. Raises `UnusableRecord`."""
    if isinstance(record.get(name), str):
        record = {name: [{"role": role, "content": record[name]}]}
    return tuple(_messages(field(record, name, list), name))


def prompt_of(messages: Sequence[Message]) -> list[JsonValue]:
    """Return messages in the form of a field. Raises `UnusableRecord` for function calls, thoughts and images."""
    if any(message.tool_calls or message.reasoning or message.images for message in messages):
        raise UnusableRecord("a message has calls, thoughts or images, and messages of this form are texts")
    return [{"role": message.role, "content": message.content} for message in messages]


def thought_in(given: Mapping[str, JsonValue], keys: Sequence[str] = THOUGHTS) -> str:
    """Return an assistant's thoughts: those under the first key that has any. Raises `UnusableRecord`."""
    key = next((key for key in keys if given.get(key)), "")
    return field(given, key, str) if key else ""


def learned_in(given: Mapping[str, JsonValue]) -> bool | None:
    """Return whether a message is learned from, by its `loss` or else its `weight`. Raises `UnusableRecord`."""
    if given.get("loss") is not None:
        return field(given, "loss", bool)
    weight = given.get("weight")
    if weight not in (None, 0, 1):
        raise UnusableRecord(f"weight: {weight!r:.40} is neither 0 nor 1")
    return None if weight is None else bool(weight)


def _messages(given: Sequence[Any], name: str) -> Iterator[Message]:
    for number, one in enumerate(given, 1):
        if not isinstance(one, dict):
            raise UnusableRecord(f"{name}: message {number} is no object")
        if called := next((key for key in CALLS if one.get(key)), None):
            raise UnusableRecord(f"{name}: message {number}: {called}: only conversations have calls of functions")
        if thought := next((key for key in THOUGHTS if one.get(key)), None):
            raise UnusableRecord(f"{name}: message {number}: {thought}: only conversations have thoughts apart")
        try:
            yield Message(role=field(one, "role", str), content=field(one, "content", str))  # type: ignore[arg-type]
        except (UnusableRecord, ValidationError) as error:
            told = faults(error) if isinstance(error, ValidationError) else error
            raise UnusableRecord(f"{name}: message {number}: {told}") from None
