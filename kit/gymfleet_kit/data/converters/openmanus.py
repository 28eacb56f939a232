"""OpenManus-RL's dataset: `{"id": "os_5", "conversations": [{"role": "user", "content": "..."}, ...]}`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from gymfleet_contracts.conversation import Conversation, Message, Role
from pydantic import JsonValue

from gymfleet_kit.data.converter import ConverterOptions, field
from gymfleet_kit.data.converters._chat import ChatConverter
from gymfleet_kit.data.converters._prompt import thought_in


class OpenManusOptions(ConverterOptions):
    """No options of its own."""


class OpenManus(ChatConverter[OpenManusOptions]):
    """OpenManus-RL's conversations: an id, and messages with `role` and `content`; every reply is learned from."""

    Options = OpenManusOptions
    marks = False
    roles: ClassVar[Mapping[str, Role]] = {"system": "system", "user": "user", "assistant": "assistant"}
    names: ClassVar[Mapping[Role, str]] = {
        "system": "system", "user": "user", "assistant": "assistant", "tool": "user",
    }  # fmt: skip
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "id": "os_5",
            "conversations": [
                {"role": "user", "content": "How many .log files are in /var/tmp?"},
                {
                    "role": "assistant",
                    "content": "Think: list then count\nAct: bash\n```bash\nls /var/tmp | wc -l\n```",
                },
                {"role": "user", "content": "OS Output: 3"},
                {"role": "assistant", "content": "Think: done\nAct: answer(3)"},
            ],
        },
    )

    @property
    def key(self) -> str:
        """Return the key of the list of messages."""
        return "conversations"

    def message(self, given: Mapping[str, JsonValue]) -> Message:
        """Return one message."""
        role = self.role(given, "role")
        thought = thought_in(given) if role == "assistant" else ""
        return Message(role=role, content=field(given, "content", str), reasoning=thought)

    def written(self, message: Message) -> dict[str, JsonValue]:
        """Return a message."""
        return {"role": self.names[message.role], "content": message.content}

    def known(self, record: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the id."""
        return {"id": field(record, "id", str)}

    def head(self, given: Conversation) -> dict[str, JsonValue]:
        """Return a record with the id, which may be empty."""
        return {"id": given.id}
