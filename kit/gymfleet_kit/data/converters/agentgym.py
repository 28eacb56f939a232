"""AgentGym's sets: AgentTraj-L, AgentEval and AgentGym-RL-Data-ID."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from gymfleet_contracts.data_records import DataRecord, TaskRow
from pydantic import JsonValue

from gymfleet_kit.data.converter import Written, field
from gymfleet_kit.data.converters._identified import IdentifiedChat, TaskOptions, task_of


class AgentGymOptions(TaskOptions):
    """Facts that the ids do not give."""


class AgentGym(IdentifiedChat[AgentGymOptions]):
    """AgentTraj-L's conversations, and the bare ids of AgentEval and AgentGym-RL: tasks without replies."""

    Options = AgentGymOptions
    id_key = "item_id"
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
        {"item_id": "lmrlgym_maze_3", "conversations": None},
        {"item_id": "sqlgym_7"},
    )

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation, or the task of a bare id."""
        if record.get("conversations") is not None:
            yield from super().convert(record)
        else:
            yield TaskRow(task=task_of(field(record, "item_id", str), self.options))

    def write(self, one: DataRecord) -> Written:
        """Return the record of a conversation, or the id of a task."""
        if not isinstance(one, TaskRow) or one.task is None:
            return super().write(one)
        lost = {
            name for name in ("prompt", "data_source", "ability", "reward_model", "extra_info") if getattr(one, name)
        }
        if one.task != task_of(one.task.task_id, self.options):
            lost.add("task")
        return Written({"item_id": one.task.task_id, "conversations": None}, frozenset(lost))
