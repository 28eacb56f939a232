"""The hot path's structs against the models of record, and messages of several frames."""

from typing import Any

import msgspec
import pytest
from gymfleet_contracts.observation import ImagePart, TextPart
from gymfleet_contracts.session import Game, Seat, Step, StepResult
from gymfleet_env_server.wire import decode, decode_step, encode, encode_result
from gymfleet_kit.session_problems import InvalidRequest
from pydantic import ValidationError

from tests.unit.env_server.test_sessions import Host

RESULT = {
    "index": 3, "observation": "hé", "reward": 0.5, "terminated": False, "truncated": True, "score": 0.25,
    "action_valid": True, "info": {},
}  # fmt: skip
GAME = Game(to_move="x", moved="o", seats={"x": Seat(observation="yours", reward=0.5), "o": Seat(observation="")})
BODIES: list[Any] = [
    {"index": 0, "action": ""},
    {"action": "go", "index": 7},
    {"index": 2**63 - 1, "action": "far"},
    {"index": 2**63, "action": "too far"},
    {"index": 0, "action": "hé\x00"},
    {"index": -1, "action": "go"},
    {"index": "0", "action": "go"},
    {"index": 0.0, "action": "go"},
    {"index": 0.5, "action": "go"},
    {"index": True, "action": "go"},
    {"index": None, "action": "go"},
    {"index": 0, "action": b"go"},
    {"index": 0, "action": 5},
    {"index": 0},
    {"action": "go"},
    {"index": 0, "action": "go", "surplus": 1},
    {1: 2},
    [],
    [0, "go"],
    None,
    "go",
]


def by_model(body: Any) -> tuple[int, str] | None:
    try:
        step = Step.model_validate(body)
    except ValidationError:
        return None
    return step.index, step.action


def by_struct(body: Any) -> tuple[int, str] | None:
    """None where the struct refuses: then the model is asked."""
    try:
        step = decode_step(encode(body))
    except msgspec.DecodeError:
        return None
    return step.index, step.action


@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_struct_accepts_nothing_that_the_model_refuses(body: Any) -> None:
    assert by_struct(body) in (None, by_model(body))


@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_what_the_struct_refuses_is_judged_by_the_model(body: Any) -> None:
    host = Host()
    session_id = host.open()

    if (expected := by_model(body)) is None:
        with pytest.raises(InvalidRequest):
            host.sessions.handle("step", session_id, body)
    elif expected[0] == 0:
        assert host.sessions.handle("step", session_id, body)["observation"] == f"step 1: {expected[1]}"


def test_the_hot_path_is_hot() -> None:
    assert by_struct({"index": 0, "action": "go"}) == (0, "go")


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"info": {"a": 1, "b": [None, True, {"c": "d"}], "e": 1.5}},
        {"terminated": 1, "action_valid": "false"},
        {"observation": "x" * 100_000},
        {"index": 2**40, "reward": -1e300, "score": 0.0},
        {"observation": type("Text", (str,), {})("text of a subclass")},
        {"state_key": "3e1f"},
        {"state_key": "3e1f", "terminated": 1},
        {"sealed": "AAAA"},
        {"state_key": "3e1f", "sealed": "AAAA"},
        {"parts": (TextPart(text="x"), ImagePart(sha256="0" * 64, media_type="image/png"))},
        {"game": GAME},
        {"game": GAME, "terminated": 1},
    ],
)
def test_result_has_the_bytes_of_the_model(changed: dict[str, Any]) -> None:
    fields: dict[str, Any] = {**RESULT, **changed}

    assert encode_result(**fields) == encode(StepResult.model_validate(fields).model_dump())


def test_half_a_surrogate_pair_in_the_info_is_a_question_mark() -> None:
    """An agent's words may bring it there, and must not end its episode as a failure of the environment."""
    fields: dict[str, Any] = {**RESULT, "info": {"called": "\ud800x", "\udc00": [1.5, None, "caf\u00e9"]}}

    assert decode(encode_result(**fields))["info"] == {"called": "?x", "?": [1.5, None, "caf\u00e9"]}


def test_struct_has_the_fields_of_the_model_in_their_order() -> None:
    parts = (TextPart(text="x"),)
    told = encode_result(**RESULT, state_key="k", sealed="s", parts=parts, game=GAME)  # type: ignore[arg-type]
    marked = list(decode(told))

    assert marked == list(StepResult.model_fields)
    assert list(decode(encode_result(**RESULT))) == marked[:-4], "absent where there is none"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"info": {"a": object()}},
        {"info": {1: 2}},
        {"info": {"a": (1, 2)}},
        {"info": None},
        {"terminated": "perhaps"},
        {"action_valid": None},
        {"info": {"a": "x" * 3_000_000}},
    ],
    ids=["object", "int key", "tuple", "none", "no bool", "none for a bool", "too large"],
)
def test_result_that_the_model_refuses_is_refused(changed: dict[str, Any]) -> None:
    fields: dict[str, Any] = {**RESULT, **changed}

    with pytest.raises((ValueError, TypeError)):
        encode_result(**fields)
