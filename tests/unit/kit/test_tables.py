"""Our records in tables: what is read is what was written, and other programs can read it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymfleet_contracts.conversation import Conversation, ConversationTask, Message
from gymfleet_contracts.data_records import DataRecord, Form, Preference, RewardRule, TaskRow, form_of
from gymfleet_kit.data import samples
from gymfleet_kit.data.arrow import SCHEMAS
from gymfleet_kit.data.columns import record_of
from gymfleet_kit.data.converting import converter_of
from gymfleet_kit.data.outputs import Output, encoded
from gymfleet_kit.data.reading import records

USER, SAID, OTHER = (
    Message(role="user", content="?"), Message(role="assistant", content="é"), Message(role="assistant", content=""),
)  # fmt: skip
TASK = ConversationTask(env="maze", split="test", task_id="lmrlgym_maze_1")
PREFERENCES = [
    Preference(prompt=(USER,), chosen=(SAID,), rejected=(OTHER,), task=TASK, source="x"),
    Preference(prompt=(USER,), chosen=(SAID, USER, OTHER), rejected=(OTHER,)),
]
ROWS = [
    TaskRow(prompt=(USER,), data_source="math", reward_model=RewardRule(ground_truth={"a": [1, None, 0.5]})),
    TaskRow(prompt=(USER,), ability="x", extra_info={"index": 3, "deep": {"b": []}}, reward_model=RewardRule()),
    TaskRow(task=TASK),
]
CONVERSATIONS = [
    *samples.conversations(),
    Conversation(messages=(USER, SAID), id="os_3", labels=("negative", "failed"), success=False, reward=-0.1),
]


def written(path: Path, given: list[DataRecord], form: Form) -> Path:
    output = Output(path)
    output.begin()
    for start in range(0, len(given), 2):
        output.append(encoded(given[start : start + 2], form, is_table=output.is_table))
    output.finish(form)
    return path


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl"])
@pytest.mark.parametrize("given", [samples.episodes(), CONVERSATIONS, PREFERENCES, ROWS], ids=lambda g: form_of(g[0]))
def test_what_is_read_is_what_was_written(tmp_path: Path, name: str, given: list[DataRecord]) -> None:
    path = written(tmp_path / name, given, form_of(given[0]))

    assert [record_of(record) for _, record in records(path)] == given
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_keys_of_other_rows_are_not_those_of_a_call(tmp_path: Path) -> None:
    def chat(tool: str, key: str) -> dict[str, Any]:
        parameters = {"type": "object", "properties": {key: {"type": "string"}}}
        call = {"type": "function", "function": {"name": tool, "arguments": {key: "x"}}}
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        return {"messages": messages, "tools": [{"name": tool, "parameters": parameters}]}

    given = [chat("weather", "city"), chat("search", "title")]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist(given), path)
    converter = converter_of("messages", table="x")

    found = [converter.convert(record) for _, record in records(path)]

    assert found == [converter.convert(record) for record in given]


@pytest.mark.parametrize("form", SCHEMAS)
def test_an_empty_table_has_the_columns_of_its_form(tmp_path: Path, form: Form) -> None:
    assert pq.read_schema(written(tmp_path / "x.parquet", [], form)).equals(SCHEMAS[form])
