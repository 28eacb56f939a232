"""Rows of verl: a prompt, and the rule that scores a reply to it."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from gymfleet_contracts.data_records import DataRecord, RewardRule, TaskRow, form_of
from pydantic import JsonValue

from gymfleet_kit.data.converter import Converter, ConverterOptions, UnusableRecord, Written, field
from gymfleet_kit.data.converters._prompt import prompt_in, prompt_of


class VerlOptions(ConverterOptions):
    """No options of its own."""


class Verl(Converter[VerlOptions]):
    """Rows for RL in verl's form: `prompt`, `data_source`, `ability`, `reward_model` and `extra_info`."""

    Options = VerlOptions
    examples: ClassVar[tuple[Mapping[str, JsonValue], ...]] = (
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": "How much is 1 + 1?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"},
            "extra_info": {"split": "train", "index": 0},
        },
    )

    def convert(self, record: Mapping[str, JsonValue]) -> Iterator[DataRecord]:
        """Yield the task."""
        given: dict[str, Any] = {}
        if record.get("reward_model") is not None:
            rule = field(record, "reward_model", dict)
            style = field(rule, "style", str) if rule.get("style") is not None else "rule"
            given["reward_model"] = RewardRule(style=style, ground_truth=rule.get("ground_truth"))
        for name, kind in (("ability", str), ("extra_info", dict)):
            if record.get(name) is not None:
                given[name] = field(record, name, kind)
        yield TaskRow(prompt=prompt_in(record), data_source=field(record, "data_source", str), **given)

    def write(self, one: DataRecord) -> Written:
        """Return the row of a task with a prompt."""
        if not isinstance(one, TaskRow) or not one.prompt:
            raise UnusableRecord(f"a row of verl has a prompt and no reply; {form_of(one)} like this one are not that")
        record: dict[str, JsonValue] = {"data_source": one.data_source, "prompt": prompt_of(one.prompt)}
        if one.ability:
            record["ability"] = one.ability
        if one.reward_model is not None:
            record["reward_model"] = one.reward_model.model_dump(mode="json")
        if one.extra_info:
            record["extra_info"] = one.extra_info
        return Written(record, frozenset({"task"} if one.task else ()))
