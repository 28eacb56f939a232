"""The step's body and result as msgspec structs: the hot path of what `contracts.session` describes.

The pydantic models remain the authoritative schema. A body that these structs reject is
passed to `Step`, which accepts it or says what is wrong; `encode_result` returns the bytes
that `StepResult` would.
"""

import json
from typing import Annotated, Any, Final

import msgspec
from gymfleet_contracts.observation import Part
from gymfleet_contracts.session import Game, StepResult
from pydantic import JsonValue, TypeAdapter

MAX_RESULT_BYTES: Final = 2 * 1024 * 1024
"""Largest size of one encoded result; two of them fit into a frame."""


class StepBody(msgspec.Struct, forbid_unknown_fields=True):
    """`Step`, without pydantic's conversions."""

    index: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    action: str


class _StepRecord(msgspec.Struct):
    """`StepResult`: the same fields in the same order."""

    index: int
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    score: float
    action_valid: bool
    info: dict[str, Any]


class _MarkedStepRecord(_StepRecord, omit_defaults=True):
    """The same, with the fields that only few sessions have."""

    state_key: str | None = None
    sealed: str | None = None
    parts: tuple[dict[str, str], ...] = ()
    game: dict[str, Any] | None = None


checked_info: Final = TypeAdapter(dict[str, JsonValue]).validate_python
"""Return an `info` that can be sent. Raises pydantic's `ValidationError`."""
encode: Final = msgspec.msgpack.Encoder().encode
decode: Final = msgspec.msgpack.Decoder().decode
decode_step: Final = msgspec.msgpack.Decoder(StepBody).decode


def encode_result(
    *,
    index: int,
    observation: str,
    reward: float,
    terminated: bool,
    truncated: bool,
    score: float,
    action_valid: bool,
    info: dict[str, JsonValue],
    state_key: str | None = None,
    sealed: str | None = None,
    parts: tuple[Part, ...] = (),
    game: Game | None = None,
) -> bytes:
    """Return the msgpack of a `StepResult`. Raises ValueError, or an encoding error, for an invalid result."""
    if state_key is sealed is None and game is None and not parts:
        record = _StepRecord(index, observation, reward, terminated, truncated, score, action_valid, info)
    else:
        told = (index, observation, reward, terminated, truncated, score, action_valid, info)
        shown = tuple(part.model_dump() for part in parts)
        record = _MarkedStepRecord(*told, state_key, sealed, shown, None if game is None else game.model_dump())
    if type(terminated) is type(action_valid) is bool and type(observation) is str and type(info) is dict:
        if info:
            record.info = checked_info(info)
        try:
            encoded = encode(record)
        except UnicodeEncodeError:  # half a surrogate pair, which an agent's words may bring into `info`
            record.info = json.loads(json.dumps(info, ensure_ascii=False).encode(errors="replace"))
            encoded = encode(record)
    else:
        encoded = encode(StepResult.model_validate(msgspec.structs.asdict(record)).model_dump())
    if len(encoded) > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {len(encoded)} bytes; {MAX_RESULT_BYTES} is the limit")
    return encoded
