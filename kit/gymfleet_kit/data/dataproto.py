"""Episodes as a batch in the form of verl's `DataProto` (verl 0.9, `verl/protocol.py`), in a directory, and back.

A `DataProto` is a dictionary of tensors, one of columns that are not tensors, and one of facts about the whole; verl
itself stores it as a pickle. Here they are `batch.safetensors`, `non_tensor_batch.json` and `meta_info.json`. A row is
a token sequence: an episode has several if a turn replaced the context. The tensors are those of verl's agent loop
(`verl/experimental/agent_loop/agent_loop.py`), for B rows with prompts of up to P and responses of up to R tokens:

- `prompts` (B, P) int64, padded on the left; `responses` (B, R) int64, padded on the right: everything after the first
  prompt, replies and the answers to them;
- `input_ids`, `attention_mask`, `position_ids` (B, P + R) int64: prompt and response concatenated;
- `response_mask` (B, R) int64: 1 where the agent wrote the token, 0 for observations and padding;
- `rollout_log_probs` (B, R) float32, if the replies were sampled, and `token_level_scores` (B, R) float32, if the
  episodes have rewards: 0 wherever `response_mask` is.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from gymfleet_contracts import strict_json
from gymfleet_contracts.faults import faults
from gymfleet_contracts.trajectory import ScoredTrajectory, Turn
from numpy.typing import NDArray
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from gymfleet_kit.data.chunks import DataError

TENSORS: Final = "batch.safetensors"
COLUMNS: Final = "non_tensor_batch.json"
META: Final = "meta_info.json"
MAX_TOKENS: Final = 1 << 28
"""The most tokens of a batch, including padding."""
_MAX_JSON_BYTES: Final = 1 << 30
_MAX_TENSOR_BYTES: Final = 1 << 34
_REST: Final = "gymfleet_episode"
"""The column with the rest of an episode, as JSON, in its first row."""
_OF_TENSORS: Final = ("prompt_token_ids", "response_token_ids", "response_logprobs")

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Batch:
    """The contents of a `DataProto`."""

    tensors: Mapping[str, Array]
    columns: Mapping[str, Sequence[JsonValue]]
    """One value for each row."""
    meta_info: Mapping[str, JsonValue]


@dataclass(frozen=True)
class _Row:
    scored: ScoredTrajectory
    place: int
    """The number of the sequence in its episode."""
    turns: Sequence[tuple[int, Turn]]
    """The turns, each with its place in the episode."""

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.turns[0][1].prompt_token_ids

    @property
    def pieces(self) -> list[tuple[int, Turn, int]]:
        """Return each turn, with its place in the episode and where its reply begins in the response."""
        found, begin = [], -len(self.prompt)
        for place, turn in self.turns:
            begin += len(turn.prompt_token_ids)
            found.append((place, turn, begin))
            begin += len(turn.response_token_ids)
        return found

    @property
    def response(self) -> tuple[int, ...]:
        joined = [token for _, turn in self.turns for token in (*turn.prompt_token_ids, *turn.response_token_ids)]
        return tuple(joined[len(self.prompt) :])


def batch_of(episodes: Iterable[ScoredTrajectory], *, pad_token_id: int = 0) -> Batch:
    """Return the batch of episodes.

    Raises `DataError` for an episode without tokens, and if only some have rewards or log-probabilities: a tensor has a
    number for each row, and a missing one is not 0.
    """
    rows = [row for scored in episodes for row in _rows(scored)]
    if not rows:
        raise DataError("there is no episode to make a batch of")
    num_prompt = max(len(row.prompt) for row in rows)
    num_response = max(len(row.response) for row in rows)
    if len(rows) * (num_prompt + num_response) > MAX_TOKENS:
        raise DataError(f"{len(rows)} rows of {num_prompt + num_response} tokens are too many for one batch: split it")
    tensors = _tokens(rows, num_prompt, num_response, pad_token_id)
    if _all_or_none(rows, "log-probabilities", lambda row: row.turns[0][1].response_logprobs is not None):
        tensors["rollout_log_probs"] = _on_replies(
            rows, num_response, lambda row, place: row.scored.trajectory.turns[place].response_logprobs or ()
        )
    if _all_or_none(rows, "rewards", lambda row: row.scored.reward is not None):
        tensors["token_level_scores"] = _on_replies(rows, num_response, _token_rewards)
    return Batch(tensors, _columns(rows), {"pad_token_id": pad_token_id})


def episodes_of(batch: Batch) -> list[ScoredTrajectory]:
    """Return the episodes of a batch from `batch_of`: tokens, log-probabilities and rewards come from the tensors.

    Raises `DataError` for any other batch, such as one without the column `gymfleet_episode`.
    """
    rest = batch.columns.get(_REST)
    if rest is None:
        raise DataError(f"the batch has no column {_REST}: its texts are not known, and no episode is made of tokens")
    found: list[ScoredTrajectory] = []
    first = 0
    while first < len(rest):
        end = first + 1
        while end < len(rest) and rest[end] is None:
            end += 1
        found.append(_episode(batch, first, end))
        first = end
    return found


def write(batch: Batch, directory: Path) -> None:
    """Write the three files into a new directory. Raises `DataError`."""
    partial = directory.with_name(f"{directory.name}.partial")
    try:
        if directory.exists():
            raise DataError(f"{directory} is there already; choose another directory")
        partial.mkdir(parents=True, exist_ok=True)
        save_file({name: np.ascontiguousarray(array) for name, array in batch.tensors.items()}, partial / TENSORS)
        (partial / COLUMNS).write_text(_json(batch.columns), encoding="utf-8")
        (partial / META).write_text(_json(batch.meta_info), encoding="utf-8")
        partial.rename(directory)
    except OSError as error:
        raise DataError(f"{directory} cannot be written: {error.strerror or error}") from None


def read(directory: Path) -> Batch:
    """Read the three files, which may come from anybody. Raises `DataError`."""
    columns, meta_info = _object(directory / COLUMNS), _object(directory / META)
    file = directory / TENSORS
    try:
        if file.stat().st_size > _MAX_TENSOR_BYTES:
            raise DataError(f"{file}: larger than {_MAX_TENSOR_BYTES} bytes")
        tensors = load_file(file)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{file}: no tensors that can be read: {' '.join(str(error).split()):.200}") from None
    if not tensors or any(not array.shape for array in tensors.values()):
        raise DataError(f"{file}: each tensor of a batch has a row for each sequence")
    sizes = {name: len(array) for name, array in tensors.items()}
    for name, column in columns.items():
        if not isinstance(column, list):
            raise DataError(f"{directory / COLUMNS}: {name}: a column is a list")
        sizes[name] = len(column)
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise DataError(f"{directory}: tensors and columns have different numbers of rows: {told:.300}")
    return Batch(tensors, {name: column for name, column in columns.items() if isinstance(column, list)}, meta_info)


def _rows(scored: ScoredTrajectory) -> list[_Row]:
    trajectory = scored.trajectory
    if not any(turn.response_token_ids for turn in trajectory.turns):
        raise DataError(f"{trajectory.trajectory_id} has no tokens of its own model: there is nothing to train on")
    if trajectory.images:
        raise DataError(f"{trajectory.trajectory_id} shows images, for which a batch has no place")
    rows, begin = [], 0
    for place, turns in enumerate(trajectory.sequences()):
        rows.append(_Row(scored, place, [(begin + number, turn) for number, turn in enumerate(turns)]))
        begin += len(turns)
    return rows


def _tokens(rows: Sequence[_Row], num_prompt: int, num_response: int, pad_token_id: int) -> dict[str, Array]:
    prompts = np.full((len(rows), num_prompt), pad_token_id, np.int64)
    responses = np.full((len(rows), num_response), pad_token_id, np.int64)
    attention_mask = np.zeros((len(rows), num_prompt + num_response), np.int64)
    response_mask = np.zeros((len(rows), num_response), np.int64)
    for number, row in enumerate(rows):
        prompt, response = row.prompt, row.response
        prompts[number, num_prompt - len(prompt) :] = prompt
        responses[number, : len(response)] = response
        attention_mask[number, num_prompt - len(prompt) : num_prompt + len(response)] = 1
        for _, turn, begin in row.pieces:
            response_mask[number, begin : begin + len(turn.response_token_ids)] = 1
    return {
        "prompts": prompts, "responses": responses, "input_ids": np.concatenate([prompts, responses], axis=1),
        "attention_mask": attention_mask, "response_mask": response_mask,
        # As in verl's `compute_position_id_with_mask`: padding has the position of the token before it, or 0.
        "position_ids": np.clip(np.cumsum(attention_mask, axis=1) - 1, 0, None),
    }  # fmt: skip


def _on_replies(rows: Sequence[_Row], num_response: int, values: Any) -> Array:
    """Return the values of response tokens at their places, and 0 elsewhere. (B, R) float32."""
    found = np.zeros((len(rows), num_response), np.float32)
    for number, row in enumerate(rows):
        for place, turn, begin in row.pieces:
            found[number, begin : begin + len(turn.response_token_ids)] = values(row, place)
    return found


def _token_rewards(row: _Row, place: int) -> tuple[float, ...]:
    return () if row.scored.reward is None else row.scored.reward.token_rewards[place]


def _all_or_none(rows: Sequence[_Row], what: str, has: Any) -> bool:
    having = [bool(has(row)) for row in rows]
    if any(having) and not all(having):
        lacking = rows[having.index(False)].scored.trajectory.trajectory_id
        raise DataError(f"{lacking} has no {what}, and others have: a batch has them for all its rows or for none")
    return all(having)


def _columns(rows: Sequence[_Row]) -> dict[str, Sequence[JsonValue]]:
    episodes = [row.scored.trajectory for row in rows]
    return {
        "uid": [f"{one.run_id}/{one.group_id}" for one in episodes],
        "data_source": [one.task.env for one in episodes],
        "trajectory_id": [one.trajectory_id for one in episodes],
        "task_id": [one.task.task_id for one in episodes],
        "split": [one.task.split for one in episodes],
        "success": [one.success for one in episodes],
        "reward": [None if row.scored.reward is None else row.scored.reward.total for row in rows],
        "__num_turns__": [len(row.turns) for row in rows],
        "sequence": [row.place for row in rows],
        _REST: [_rest(row.scored) if row.place == 0 else None for row in rows],
    }


def _rest(scored: ScoredTrajectory) -> str:
    """Return an episode as JSON without the contents of the tensors, but with the lengths to find them there."""
    rest = scored.model_dump(mode="json")
    for turn in rest["trajectory"]["turns"]:
        turn["lengths"] = [len(turn["prompt_token_ids"]), len(turn["response_token_ids"])]
        for name in _OF_TENSORS:
            del turn[name]
    if rest["reward"] is not None:
        del rest["reward"]["token_rewards"]
    return _json(rest)


def _episode(batch: Batch, first: int, end: int) -> ScoredTrajectory:
    text = batch.columns[_REST][first]
    try:
        rest: Any = strict_json.loads(text) if isinstance(text, str) else None
        rewards = _fill(rest["trajectory"]["turns"], batch, first, end)
        if rest["reward"] is not None:
            rest["reward"]["token_rewards"] = rewards
        return ScoredTrajectory.model_validate_json(_json(rest))
    except ValidationError as error:
        raise DataError(f"row {first + 1}: {_REST}: {faults(error, most=2)}") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise DataError(f"row {first + 1}: {_REST} does not fit the tensors: {type(error).__name__}: {error}") from None


def _fill(turns: Sequence[dict[str, Any]], batch: Batch, first: int, end: int) -> list[list[float]]:
    """Give turns their tokens and log-probabilities. Returns their token rewards."""
    logprobs, scores = batch.tensors.get("rollout_log_probs"), batch.tensors.get("token_level_scores")
    rewards, row, begin = [], first - 1, 0
    for place, turn in enumerate(turns):
        num_prompt, num_response = turn.pop("lengths")
        if place == 0 or turn.get("context") == "replaced":
            row += 1
            begin = batch.tensors["prompts"].shape[1] - num_prompt
        middle, last = begin + num_prompt, begin + num_prompt + num_response
        if row >= end or begin < 0 or last > batch.tensors["input_ids"].shape[1] or min(num_prompt, num_response) < 0:
            raise ValueError(f"turn {place} is longer than its row")
        turn["prompt_token_ids"] = batch.tensors["input_ids"][row, begin:middle].tolist()
        turn["response_token_ids"] = batch.tensors["input_ids"][row, middle:last].tolist()
        at = slice(middle - batch.tensors["prompts"].shape[1], last - batch.tensors["prompts"].shape[1])
        turn["response_logprobs"] = None if logprobs is None else logprobs[row, at].tolist()
        rewards.append([] if scores is None else scores[row, at].tolist())
        begin = last
    return rewards


def _object(file: Path) -> dict[str, JsonValue]:
    try:
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise DataError(f"{file}: larger than {_MAX_JSON_BYTES} bytes")
        found = strict_json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{file}: an object, in {{}}, is wanted")
    return found


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
