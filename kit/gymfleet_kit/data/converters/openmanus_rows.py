"""The rows in OpenManus-RL's Parquet files: verl's form, with a demonstration in addition to the prompt."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.data_records import DataRecord, RewardRule, TaskRow
from pydantic import JsonValue

from gymfleet_kit.data.converter import UnusableRecord, Written, field
from gymfleet_kit.data.converters._identified import OURS, IdentifiedChat, TaskOptions, task_of
from gymfleet_kit.data.converters._prompt import prompt_in, prompt_of

_ABILITY = "agent-reasoning"


class OpenManusRowsOptions(TaskOptions):
    """The part of a row to take; `env` is by default the row's own."""

    take: Literal["conversation", "task"] = "conversation"
    """`conversation` takes the demonstration; `task` takes the prompt, which asks for other tags, and the rule that
    scores a reply."""


class OpenManusRows(IdentifiedChat[OpenManusRowsOptions]):
    """OpenManus-RL's Parquet rows: the demonstration, or the task; `ground_truth` may be a text or an object."""

    Options = OpenManusRowsOptions
    id_key = "item_id"
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "data_source": "webshop",
            "item_id": "webshop_6148",
            "conversations": [
                {"from": "human", "loss": None, "value": "You are web shopping."},
                {"from": "gpt", "loss": False, "value": "Ok."},
                {"from": "human", "loss": None, "value": "Instruction: find a red shoe"},
                {"from": "gpt", "loss": True, "value": "Action:\nsearch[red shoe]"},
            ],
            "prompt": [{"role": "user", "content": "You are an OpenManus agent ... Task: You are web shopping."}],
            "ability": _ABILITY,
            "reward_model": {"style": "rule", "ground_truth": {"environment": "webshop", "task_id": "webshop_6148"}},
            "extra_info": {"index": 3551, "split": "webshop"},
        },
        {
            "data_source": "maze",
            "item_id": "lmrlgym_maze_13",
            "conversations": [
                {"from": "human", "loss": None, "value": "You are an expert maze solver."},
                {"from": "gpt", "loss": True, "value": "move up"},
            ],
            "prompt": [{"role": "user", "content": "You are an OpenManus agent ... Task: You are an expert."}],
            "ability": _ABILITY,
            "reward_model": {"style": "rule", "ground_truth": '[{"from": "human", "loss": null, "value": "..."}]'},
            "extra_info": {"split": "maze", "index": 0, "conversations": '[{"from": "human", "value": "..."}]'},
        },
    )

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the conversation or the task."""
        rule, extra = field(record, "reward_model", dict), field(record, "extra_info", dict)
        if self.options.take == "conversation":
            yield from super().convert(record)
            return
        yield TaskRow(
            prompt=prompt_in(record), data_source=field(record, "data_source", str),
            ability=field(record, "ability", str), task=self.known(record)["task"], extra_info=extra,
            reward_model=RewardRule(style=field(rule, "style", str), ground_truth=rule.get("ground_truth")),
        )  # fmt: skip

    def known(self, record: Mapping[str, JsonValue]) -> dict[str, Any]:
        """Return the id, and the task, with its environment from `extra_info.split`."""
        said = field(record, "item_id", str)
        env = field(field(record, "extra_info", dict), "split", str)
        options = self.options if self.options.env else self.options.model_copy(update={"env": OURS.get(env, env)})
        return {"id": said, "task": task_of(said, options)}

    def write(self, one: DataRecord) -> Written:
        """Return the row of a conversation, or of a task that names its environment."""
        return self._row_of(one) if isinstance(one, TaskRow) else super().write(one)

    def head(self, given: Conversation) -> dict[str, JsonValue]:
        """Return the other columns of the row; its prompt is the messages before the first reply."""
        if given.task is None:
            raise UnusableRecord("it is about no task of an environment; a row of this form is")
        source = _THEIRS.get(given.task.env, given.task.env)
        places = [place for place, message in enumerate(given.messages) if message.role == "assistant"]
        told = json.dumps([self.written(message) for message in given.messages])
        return {
            "data_source": source,
            "item_id": given.id or given.task.task_id,
            "prompt": [self._asked(message.content) for message in given.messages[: places[0]]],
            "ability": _ABILITY,
            "reward_model": {"style": "rule", "ground_truth": told},
            "extra_info": {"split": source, "conversations": told},
        }

    @staticmethod
    def _asked(content: str) -> dict[str, JsonValue]:
        return {"role": "user", "content": content}

    def _row_of(self, row: TaskRow) -> Written:
        if self.options.take != "task" or row.task is None or row.reward_model is None:
            raise UnusableRecord('a task is written with the option take = "task", and needs `task` and `reward_model`')
        source = _THEIRS.get(row.task.env, row.task.env)
        record: dict[str, JsonValue] = {
            "data_source": row.data_source,
            "item_id": row.task.task_id,
            "prompt": prompt_of(row.prompt),
            "ability": row.ability,
            "reward_model": row.reward_model.model_dump(mode="json"),
            "extra_info": {**row.extra_info, "split": source},
        }
        lost = {"extra_info"} if row.extra_info.get("split") != source else set()
        lost |= {"task"} if self.known(record)["task"] != row.task else set()
        return Written(record, frozenset(lost))


_THEIRS: Mapping[str, str] = {ours: theirs for theirs, ours in OURS.items()}
