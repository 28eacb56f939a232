"""ShareGPT's form: `{"conversations": [{"from": "human", "value": "..."}, ...]}`."""

import json
from collections.abc import Mapping
from typing import ClassVar

from gymfleet_contracts.conversation import Message, Role
from gymfleet_contracts.strict_json import read_object
from pydantic import JsonValue

from gymfleet_kit.data.converter import UnusableRecord
from gymfleet_kit.data.converters._chat import ChatOptions, KeyedChat
from gymfleet_kit.data.converters._functions import made_call
from gymfleet_kit.data.converters._identified import human_or_gpt
from gymfleet_kit.data.converters._prompt import THOUGHTS


class ShareGptOptions(ChatOptions):
    """The keys of a record."""

    key: str = "conversations"
    """The key of the list of messages."""


class ShareGpt(KeyedChat[ShareGptOptions]):
    """Messages with `from` and `value`, as in ShareGPT; with `loss` false or `weight` 0 they are not learned.

    As in LLaMA-Factory, a message from `function_call` is a call as JSON, `tools` declares the functions, and `chosen`
    and `rejected` are two replies to the messages.
    """

    Options = ShareGptOptions
    roles: ClassVar[Mapping[str, Role]] = {
        "system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
        "observation": "tool", "tool": "tool", "function_call": "assistant", "chatgpt": "assistant",
        "bing": "assistant", "bard": "assistant",
    }  # fmt: skip
    names: ClassVar[Mapping[Role, str]] = {
        "system": "system", "user": "human", "assistant": "gpt", "tool": "observation",
    }  # fmt: skip
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "id": "chat_12",
            "conversations": [
                {"from": "human", "value": "Craft what you are asked for."},
                {"from": "gpt", "loss": False, "value": "OK."},
                {"from": "observation", "value": "Goal: craft torch."},
                {"from": "gpt", "loss": True, "value": "Thought:\nI need coal.\n\nAction:\nget 1 coal"},
            ],
        },
        {"conversations": [{"from": "human", "value": "Hello."}, {"from": "gpt", "value": "Hello."}], "success": True},
        {
            "conversations": [
                {"from": "human", "value": "Is it raining in Kyoto?"},
                {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Kyoto"}}'},
                {"from": "observation", "value": "no"},
                {"from": "gpt", "value": "It is dry."},
            ],
            "tools": '[{"name": "weather", "description": "Looks.", "parameters": {"type": "object"}}]',
        },
        {
            "conversations": [{"from": "human", "value": "1 + 1?"}],
            "chosen": {"from": "gpt", "value": "2"},
            "rejected": {"from": "gpt", "value": "3"},
        },
    )
    calls = True
    apart = frozenset({"reasoning"})

    @property
    def key(self) -> str:
        """Return the key of the list of messages."""
        return self.options.key

    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message."""
        said = human_or_gpt(given, self.role(given, "from"))
        if given.get("from") != "function_call":
            return said
        called = read_object(said.content)
        if called is None:
            raise UnusableRecord("value: a function_call is one JSON object with `name` and `arguments`")
        return said.model_copy(update={"content": "", "tool_calls": (made_call(called, "function_call"),)})

    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message; one that is learned from needs no `loss`."""
        found: dict[str, JsonValue] = {"from": self.names[message.role], "value": message.content}
        if message.tool_calls:
            if message.content or len(message.tool_calls) > 1:
                raise UnusableRecord("a function_call of this form is one call, and no text stands beside it")
            call = message.tool_calls[0]
            said = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            found = {"from": "function_call", "value": said}
        if message.reasoning:
            found[THOUGHTS[0]] = message.reasoning
        return found | {"loss": False} if message.role == "assistant" and not message.teaches else found
