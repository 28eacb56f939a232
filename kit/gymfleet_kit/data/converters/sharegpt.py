"""ShareGPT's form: `{"conversations": [{"from": "human", "value": "..."}, ...]}`."""

from collections.abc import Mapping
from typing import ClassVar

from gymfleet_contracts.conversation import Message, Role
from pydantic import JsonValue

from gymfleet_kit.data.converters._chat import ChatOptions, KeyedChat
from gymfleet_kit.data.converters._identified import human_or_gpt


class ShareGptOptions(ChatOptions):
    """Where things stand in a record."""

    key: str = "conversations"
    """The key of the list of messages."""


class ShareGpt(KeyedChat[ShareGptOptions]):
    """Messages with `from` and `value`, as ShareGPT has them; with `loss` false they are not learned."""

    Options = ShareGptOptions
    roles: ClassVar[Mapping[str, Role]] = {
        "system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
        "observation": "tool", "tool": "tool",
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
    )

    @property
    def key(self) -> str:
        """Return the key of the list of messages."""
        return self.options.key

    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message."""
        return human_or_gpt(given, self.role(given, "from"))

    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message; what is learned from needs no `loss`."""
        found: dict[str, JsonValue] = {"from": self.names[message.role], "value": message.content}
        return found | {"loss": False} if message.role == "assistant" and not message.teaches else found
