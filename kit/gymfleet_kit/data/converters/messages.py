"""Messages as in OpenAI's chat API: `{"messages": [{"role": "user", "content": "..."}, ...]}`."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from gymfleet_contracts.conversation import MadeCall, Message, Role
from gymfleet_contracts.observation import ImageFile
from pydantic import JsonValue

from gymfleet_kit.data.converter import field
from gymfleet_kit.data.converters._chat import ChatOptions, KeyedChat, require_no_calls
from gymfleet_kit.data.converters._functions import calls_of, said_calls
from gymfleet_kit.data.converters._images import parts_of, shown_in
from gymfleet_kit.data.converters._prompt import THOUGHTS, learned_in, thought_in
from gymfleet_kit.data.converters._tool_calls import calls_in, text_of


class MessagesOptions(ChatOptions):
    """The keys of a record."""

    key: str = "messages"
    """The key of the list of messages: OpenManus-RL has `conversations`."""
    role: str = "role"
    """The key of a message's role."""
    content: str = "content"
    """The key of a message's text."""
    reasoning: str = "reasoning_content"
    """The key of the assistant's thoughts before a message. In messages that lack it, `reasoning_content`, `reasoning`
    and `thinking` are tried; "" looks for none."""
    tool_calls: Literal["calls", "text"] = "calls"
    """How function calls are kept: `calls` keeps them and the declarations in `tools`, and the model's chat template
    writes them. `text` writes them after the message, each in `<tool_call>` as in Hermes and Qwen, and reads them from
    there when it writes records; their ids and the declarations are lost."""


class Messages(KeyedChat[MessagesOptions]):
    """Messages with `role` and `content`, as in OpenAI's chat API; `weight` 0 or `loss` false are not learned from."""

    Options = MessagesOptions
    roles: ClassVar[Mapping[str, Role]] = {
        "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
        "function": "tool",
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
        {
            "messages": [
                {"role": "user", "content": "Is it raining in Kyoto?"},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "I look.",
                    "tool_calls": [
                        {
                            "id": "call_1",
                            "type": "function",
                            "function": {"name": "weather", "arguments": '{"city": "Kyoto"}'},
                        }
                    ],
                },
                {"role": "tool", "content": "no", "tool_call_id": "call_1"},
                {"role": "assistant", "content": "It is dry."},
            ],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "weather",
                        "description": "Looks outside.",
                        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                    },
                }
            ],
        },
    )
    calls = calls_beside = True
    apart = frozenset({"reasoning", "call_ids", "images"})

    @property
    def key(self) -> str:
        """Return the key of the list of messages."""
        return self.options.key

    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message."""
        role = self.role(given, self.options.role)
        if role == "tool":
            answers, name = (
                "" if given.get(key) is None else field(given, key, str) for key in ("tool_call_id", "name")
            )
            content, images = self._shown(given)
            return Message(role=role, content=content, images=images, tool_call_id=answers, name=name)
        if role != "assistant":
            content, images = self._shown(given)
            return Message(role=role, content=content, images=images)
        calls = calls_of(given)
        as_text = self.options.tool_calls == "text"
        return Message(
            role=role,
            content=self._replied(given, calls) + text_of(calls) if as_text else self._replied(given, calls),
            reasoning=self._thought(given),
            tool_calls=() if as_text else calls,
            learned=learned_in(given),
        )

    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message; one that is learned from needs no `weight`."""
        content, calls = message.content, message.tool_calls
        if self.options.tool_calls == "text" and message.role == "assistant":
            require_no_calls([message])
            content, calls = calls_in(message.content)
        said: tuple[tuple[str, JsonValue], ...] = (
            (self.options.reasoning, message.reasoning), ("tool_calls", said_calls(calls)),
            ("tool_call_id", message.tool_call_id), ("name", message.name),
        )  # fmt: skip
        shown: JsonValue = parts_of(content, message.images) if message.images else content
        found: dict[str, JsonValue] = {self.options.role: self.names[message.role], self.options.content: shown}
        found |= {key: value for key, value in said if key and value}
        return found | {"weight": 0} if message.role == "assistant" and not message.teaches else found

    def known(self, record: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the facts under the keys; if calls are text, no function is declared."""
        found = super().known(record)
        if self.options.tool_calls == "text":
            found.pop("tools", None)
        return found

    def _replied(self, given: Mapping[str, JsonValue], calls: tuple[MadeCall, ...]) -> str:
        """Return the text of the assistant's message; OpenAI puts that of a refusal under a key of its own."""
        if given.get(self.options.content) in (None, ""):
            if given.get("refusal"):
                return field(given, "refusal", str)
            if calls:
                return ""
        return self._shown(given)[0]

    def _thought(self, given: Mapping[str, JsonValue]) -> str:
        return thought_in(given, (self.options.reasoning, *THOUGHTS)) if self.options.reasoning else ""

    def _shown(self, given: Mapping[str, JsonValue]) -> tuple[str, tuple[ImageFile, ...]]:
        parts = given.get(self.options.content)
        return shown_in(parts) if isinstance(parts, list) else (field(given, self.options.content, str), ())
