"""Messages as OpenAI's chat API has them: `{"messages": [{"role": "user", "content": "..."}, ...]}`."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from gymfleet_contracts.conversation import Message, Role
from pydantic import JsonValue

from gymfleet_kit.data.converter import UnusableRecord, field
from gymfleet_kit.data.converters._chat import ChatOptions, KeyedChat
from gymfleet_kit.data.converters._tool_calls import calls_in, text_of


class MessagesOptions(ChatOptions):
    """Where things stand in a record."""

    key: str = "messages"
    """The key of the list of messages: OpenManus-RL has `conversations`."""
    role: str = "role"
    """The key of a message's role."""
    content: str = "content"
    """The key of a message's text."""
    tool_calls: Literal["refuse", "text"] = "refuse"
    """What becomes of calls of tools: `text` writes them behind the message, each in `<tool_call>` as Hermes and Qwen
    do, and reads them from there when it writes; their ids and the declarations in `tools` are lost."""


class Messages(KeyedChat[MessagesOptions]):
    """Messages with `role` and `content`, as OpenAI's chat API has them; `weight` 0 or `loss` false are not learned."""

    Options = MessagesOptions
    roles: ClassVar[Mapping[str, Role]] = {
        "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
    }  # fmt: skip
    names: ClassVar[Mapping[Role, str]] = {
        "system": "system", "user": "user", "assistant": "assistant", "tool": "tool",
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
        role = self.role(given, self.options.role)
        return Message(
            role=role, content=self._content(given), learned=_learned(given) if role == "assistant" else None
        )

    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message; what is learned from needs no `weight`."""
        content, calls = message.content, None
        if self.options.tool_calls == "text" and message.role == "assistant":
            content, calls = calls_in(message.content)
        found: dict[str, JsonValue] = {self.options.role: self.names[message.role], self.options.content: content}
        if calls:
            found["tool_calls"] = calls
        return found | {"weight": 0} if message.role == "assistant" and not message.teaches else found

    def _content(self, given: Mapping[str, JsonValue]) -> str:
        name = self.options.content
        parts, calls = given.get(name), given.get("tool_calls")
        if calls and self.options.tool_calls == "refuse":
            raise UnusableRecord('tool_calls: calls are learned as text; give the option tool_calls = "text"')
        if calls and parts is None:
            text = ""
        else:
            text = "".join(map(_text, parts)) if isinstance(parts, list) else field(given, name, str)
        return text + text_of(field(given, "tool_calls", list)) if calls else text


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
