"""Agent-FLAN: conversations in which format and reasoning are separate, and negatives."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from gymfleet_contracts.conversation import NEGATIVE, Conversation, Message, Role
from pydantic import JsonValue

from gymfleet_kit.data.converter import ConverterOptions, field
from gymfleet_kit.data.converters._chat import ChatConverter
from gymfleet_kit.data.converters._prompt import thought_in

_NEGATIVES: Final = "toolbench_negative"


class AgentFlanOptions(ConverterOptions):
    """No options of its own."""


class AgentFlan(ChatConverter[AgentFlanOptions]):
    """Agent-FLAN's conversations; those of its subset `toolbench_negative` have the label `negative`."""

    Options = AgentFlanOptions
    roles: ClassVar[Mapping[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant"}
    names: ClassVar[Mapping[Role, str]] = {
        "system": "system", "user": "user", "assistant": "assistant", "tool": "user",
    }  # fmt: skip
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "id": "toolbench_negative_3",
            "conversation": [
                {"role": "system", "content": "You may call: weather(city)", "loss": False},
                {"role": "user", "content": "Thanks, that was all.", "loss": False},
                {"role": "assistant", "content": "You're welcome. No tool is needed here.", "loss": True},
            ],
        },
        {
            "id": "agent_instruct_react_5",
            "conversation": [
                {"role": "user", "content": "Craft what you are asked for.", "loss": False},
                {"role": "assistant", "content": "OK.", "loss": False},
                {"role": "user", "content": "Goal: craft torch.", "loss": False},
                {"role": "assistant", "content": "get 1 coal", "loss": True},
            ],
        },
    )

    @property
    def key(self) -> str:
        """Return the key of the list of messages."""
        return "conversation"

    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message."""
        role, content = self.role(given, "role"), field(given, "content", str)
        if role != "assistant":
            return Message(role=role, content=content)
        learned = field(given, "loss", bool) if given.get("loss") is not None else None
        return Message(role=role, content=content, reasoning=thought_in(given), learned=learned)

    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message."""
        return {"role": self.names[message.role], "content": message.content, "loss": message.teaches}

    def known(self, record: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the id, and the label that it implies."""
        said = field(record, "id", str)
        return {"id": said, "labels": (NEGATIVE,) if said.startswith(_NEGATIVES) else ()}

    def head(self, given: Conversation) -> dict[str, JsonValue]:
        """Return a record with the id, which may be empty."""
        return {"id": given.id}
