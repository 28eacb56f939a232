"""AgentInstruct: conversations from six environments."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import JsonValue

from gymfleet_kit.data.converters._identified import IdentifiedChat, TaskOptions


class AgentInstructOptions(TaskOptions):
    """Facts that the ids do not give."""


class AgentInstruct(IdentifiedChat[AgentInstructOptions]):
    """AgentInstruct's conversations, whose ids, such as `os_3`, name the environment."""

    Options = AgentInstructOptions
    id_key = "id"
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "id": "db_7",
            "conversations": [
                {"from": "human", "loss": None, "value": "I ask, you operate a MySQL database."},
                {"from": "gpt", "loss": False, "value": "Ok."},
                {"from": "human", "loss": None, "value": "How many users are there?"},
                {"from": "gpt", "loss": True, "value": 'Action: Answer\nFinal Answer: ["4"]'},
            ],
        },
    )
