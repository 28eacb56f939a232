"""Messages as OpenAI's chat API has them: `{"messages": [{"role": "user", "content": "..."}, ...]}`."""

from collections.abc import Mapping
from typing import ClassVar

from gymfleet_contracts.conversation import Message, Role
from pydantic import JsonValue

from gymfleet_kit.data.converter import UnusableRecord, field
from gymfleet_kit.data.converters._chat import ChatConverter, ChatOptions


class MessagesOptions(ChatOptions):
    """Where things stand in a record."""

    key: str = "messages"
    """The key of the list of messages: Agent-FLAN has `conversation`, OpenManus-RL `conversations`."""


class Messages(ChatConverter[MessagesOptions]):
    """Messages with `role` and `content`, as OpenAI's chat API has them; `weight` 0 or `loss` false are not learned."""

    Options = MessagesOptions
    roles: ClassVar[Mapping[str, Role]] = {
        "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
    }  # fmt: skip
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "messages": [
                {"role": "system", "content": "You may call: weather(city)"},
                {"role": "user", "content": [{"type": "text", "text": "Is it raining in Kyoto?"}]},
                {"role": "assistant", "content": "weather(Kyoto)", "weight": 0},
                {"role": "tool", "content": "no", "tool_call_id": "1"},
                {"role": "assistant", "content": "It is dry.", "weight": 1},
            ],
            "reward": 0.5,
        },
    )

    @property
    def key(self) -> str:
        """Return the key of the list of messages."""
        return self.options.key

    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message."""
        role = self.role(given, "role")
        return Message(role=role, content=_content(given), learned=_learned(given) if role == "assistant" else None)


def _content(given: Mapping[str, JsonValue]) -> str:
    parts = given.get("content")
    if given.get("tool_calls"):
        raise UnusableRecord("tool_calls: calls are learned as text; write them into content")
    if not isinstance(parts, list):
        return field(given, "content", str)
    return "".join(_text(part) for part in parts)


def _text(part: JsonValue) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise UnusableRecord("content: a part that is no text; images and the like are not learned from")
    return field(part, "text", str)


def _learned(given: Mapping[str, JsonValue]) -> bool | None:
    if given.get("loss") is not None:
        return field(given, "loss", bool)
    weight = given.get("weight")
    if weight not in (None, 0, 1):
        raise UnusableRecord(f"weight: {weight!r:.40} is neither 0 nor 1")
    return None if weight is None else bool(weight)
