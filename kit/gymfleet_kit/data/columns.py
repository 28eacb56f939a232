"""Records as rows of a table: fields without a column of their own are stored as JSON.

Episodes have columns for the fields by which people select and train. The rest of an episode is JSON in `rest_json`,
that of a turn in `turns.rest_json`, so that nothing is lost: an episode reads back equal to the one written.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec
from gymfleet_contracts.conversation import Conversation
from gymfleet_contracts.data_records import DATA_RECORDS, DataRecord, TaskRow
from gymfleet_contracts.trajectory import ScoredTrajectory
from pydantic import JsonValue

_EPISODE_COLUMNS: Final = (
    "trajectory_id", "run_id", "group_id", "sample", "task", "policy", "strategy", "purpose", "format",
    "format_version", "status", "finish_reason", "success", "score",
)  # fmt: skip
_LISTS: Final = frozenset({"messages", "prompt", "chosen", "rejected"})
_MESSAGE_COLUMNS: Final = ("role", "content", "learned")
_TURN_COLUMNS: Final = (
    "observation", "text", "thought", "action", "format_valid", "action_valid", "reward", "prompt_token_ids",
    "response_token_ids", "response_logprobs",
)  # fmt: skip


def row_of(record: DataRecord) -> dict[str, Any]:
    """Return the row of a record, with the columns of its form's schema; a missing column is null."""
    if isinstance(record, ScoredTrajectory):
        return _row_of_episode(record)
    if isinstance(record, TaskRow):
        return _row_of_task(record)
    row = record.model_dump()
    for name in _LISTS & row.keys():
        row[name] = [_row_of_message(message) for message in row[name]]
    if isinstance(record, Conversation) and record.tools:
        row["tools_json"] = _json(row["tools"])
    return row


def record_of(given: Mapping[str, Any]) -> DataRecord:
    """Return our record for a table row or a line of JSON. Raises pydantic's ValidationError, or ValueError."""
    if "rest_json" in given:
        # Through JSON, so that numbers and enumerations have JSON's types, as in a `.jsonl` file.
        return DATA_RECORDS.validate_json(msgspec.json.encode(_episode_of_row(given)))
    if "trajectory" in given:
        return DATA_RECORDS.validate_json(msgspec.json.encode(given))
    found = {name: value for name, value in given.items() if value is not None}  # as tables have what is not said
    for name in _LISTS & found.keys():
        if isinstance(found[name], list):
            found[name] = [_message_of_row(message) for message in found[name]]
    if "tools_json" in found:
        found["tools"] = _parsed(found.pop("tools_json"))
    return DATA_RECORDS.validate_python(_task_of_row(found) if "extra_info_json" in given else found)


def _row_of_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a message; fields without a column are stored as JSON."""
    rest = {name: value for name, value in message.items() if name not in _MESSAGE_COLUMNS}
    row = {name: value for name, value in message.items() if name in _MESSAGE_COLUMNS}
    return row | {"rest_json": _json(rest)} if rest else row


def _message_of_row(given: Any) -> Any:
    if not isinstance(given, dict) or "rest_json" not in given:
        return given
    row = dict(given)
    rest = row.pop("rest_json")
    return row if rest is None else {**row, **cast("dict[str, Any]", _parsed(rest))}


def _row_of_task(record: TaskRow) -> dict[str, Any]:
    row = record.model_dump()
    if (rule := row.get("reward_model")) is not None:
        row["reward_model"] = {"style": rule["style"], "ground_truth_json": _json(rule["ground_truth"])}
    if record.extra_info:
        row["extra_info_json"] = _json(row["extra_info"])
    return row


def _task_of_row(row: dict[str, Any]) -> dict[str, Any]:
    if rule := row.get("reward_model"):
        row["reward_model"] = {"style": rule["style"], "ground_truth": _parsed(rule["ground_truth_json"])}
    if (extra := row.pop("extra_info_json", None)) is not None:
        row["extra_info"] = _parsed(extra)
    return row


def _row_of_episode(record: ScoredTrajectory) -> dict[str, Any]:
    rest = record.model_dump(mode="json")
    trajectory = rest["trajectory"]
    row = {name: trajectory.pop(name) for name in _EPISODE_COLUMNS if name in trajectory}
    row["turns"] = turns = []
    token_rewards = (rest["reward"] or {}).pop("token_rewards", None)
    for place, turn in enumerate(trajectory.pop("turns")):
        columns = {name: turn.pop(name) for name in _TURN_COLUMNS if name in turn}
        columns["token_rewards"] = token_rewards[place] if token_rewards is not None else None
        turns.append({**columns, "rest_json": _json(turn)})
    if rest["reward"] is not None:
        row["reward"] = rest["reward"].pop("total")
    row["rest_json"] = _json(rest)
    return row


def _episode_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    rest = cast("dict[str, Any]", _parsed(row["rest_json"]))
    turns = []
    token_rewards = []
    for turn in row["turns"]:
        columns = dict(turn)
        token_rewards.append(columns.pop("token_rewards"))
        turns.append({**cast("dict[str, Any]", _parsed(columns.pop("rest_json"))), **columns})
    rest["trajectory"] |= {name: row[name] for name in _EPISODE_COLUMNS} | {"turns": turns}
    if rest["reward"] is not None:
        rest["reward"] |= {"total": row["reward"], "token_rewards": token_rewards}
    return rest


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _parsed(text: str) -> JsonValue:
    value: JsonValue = msgspec.json.decode(text)
    return value
