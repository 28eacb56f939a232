"""The schemas of records in Parquet files, one for each form."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from gymfleet_contracts.data_records import DataRecord, Form, form_of

from gymfleet_kit.data.columns import row_of
from gymfleet_kit.data.tables import stream_of

_MESSAGES: Final = pa.list_(pa.struct([
    ("role", pa.string()), ("content", pa.string()), ("learned", pa.bool_()), ("rest_json", pa.string()),
]))  # fmt: skip
_TASK: Final = pa.struct([("env", pa.string()), ("split", pa.string()), ("task_id", pa.string())])
_REPLY: Final = pa.list_(pa.struct([
    ("role", pa.string()), ("content", pa.string()), ("rest_json", pa.string()),
]))  # fmt: skip
_IDS: Final = pa.list_(pa.int32())
_NUMBERS: Final = pa.list_(pa.float64())
_TURN: Final = pa.struct([
    ("observation", pa.string()), ("text", pa.string()), ("thought", pa.string()), ("action", pa.string()),
    ("format_valid", pa.bool_()), ("action_valid", pa.bool_()), ("reward", pa.float64()),
    ("prompt_token_ids", _IDS), ("response_token_ids", _IDS), ("response_logprobs", _NUMBERS),
    ("token_rewards", _NUMBERS), ("rest_json", pa.string()),
])  # fmt: skip
SCHEMAS: Final[Mapping[Form, Any]] = {
    "conversations": pa.schema([
        ("id", pa.string()), ("messages", _MESSAGES), ("tools_json", pa.string()), ("task", _TASK),
        ("success", pa.bool_()), ("reward", pa.float64()), ("labels", pa.list_(pa.string())), ("source", pa.string()),
    ]),
    "preferences": pa.schema([
        ("prompt", _REPLY), ("chosen", _REPLY), ("rejected", _REPLY), ("task", _TASK), ("source", pa.string()),
    ]),
    "rows": pa.schema([
        ("data_source", pa.string()), ("prompt", _REPLY), ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth_json", pa.string())])),
        ("extra_info_json", pa.string()), ("task", _TASK), ("source", pa.string()),
    ]),
    "episodes": pa.schema([
        ("trajectory_id", pa.string()), ("run_id", pa.string()), ("group_id", pa.string()), ("sample", pa.int64()),
        ("task", pa.struct([
            ("env", pa.string()), ("split", pa.string()), ("level", pa.string()), ("task_id", pa.string()),
            ("seed", pa.int64()),
        ])),
        ("policy", pa.struct([("model", pa.string()), ("version_min", pa.int64()), ("version_max", pa.int64())])),
        ("strategy", pa.string()), ("purpose", pa.string()), ("format", pa.string()), ("format_version", pa.int64()),
        ("status", pa.string()), ("finish_reason", pa.string()), ("success", pa.bool_()), ("score", pa.float64()),
        ("reward", pa.float64()), ("turns", pa.list_(_TURN)), ("rest_json", pa.string()),
    ]),
}  # fmt: skip


def encoded(records: Sequence[DataRecord], form: Form) -> bytes:
    """Return records of one form as an Arrow stream. Raises ValueError for a value that its column cannot hold."""
    schema = SCHEMAS[form]
    if strange := [form_of(record) for record in records if form_of(record) != form]:
        raise ValueError(f"a table of {form} cannot hold {strange[0]}: write them to a file of their own")
    try:
        return stream_of([pa.RecordBatch.from_pylist([row_of(record) for record in records], schema)], schema)
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(f"no room in a column: {' '.join(str(error).split()):.200}") from None
