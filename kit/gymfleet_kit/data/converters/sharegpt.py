"""ShareGPT's form: `{"conversations": [{"from": "human", "value": "..."}, ...]}`."""

from collections.abc import Mapping
from typing import ClassVar

from gymfleet_contracts.conversation import Message, Role
from pydantic import JsonValue

from gymfleet_kit.data.converter import field
from gymfleet_kit.data.converters._chat import ChatConverter, ChatOptions


class ShareGptOptions(ChatOptions):
    """Where things stand in a record."""

    key: str = "conversations"
    """The key of the list of messages."""


class ShareGpt(ChatConverter[ShareGptOptions]):
    """Messages with `from` and `value`, as ShareGPT and AgentTraj have them; with `loss` false they are not learned."""

    Options = ShareGptOptions
    roles: ClassVar[Mapping[str, Role]] = {
        "system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
        "observation": "tool", "tool": "tool",
    }  # fmt: skip
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "item_id": "textcraft_12",
            "conversations": [
                {"from": "human", "loss": None, "value": "Craft what you are asked for."},
                {"from": "gpt", "loss": False, "value": "OK."},
                {"from": "human", "loss": None, "value": "Goal: craft torch."},
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
        role = self.role(given, "from")
        told = role == "assistant" and given.get("loss") is not None
        return Message(
            role=role, content=field(given, "value", str), learned=field(given, "loss", bool) if told else None
        )
