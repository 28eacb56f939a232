"""What a run remembers of what it has consumed."""

from typing import Any, Final

import pytest
from gymfleet_trainer.run.state import EvalResult, Left, RunState

from tests.fixtures.scored import RUN_ID


def left(name: str, kind: str = "collect") -> Left:
    return Left(name=name, kind=kind, seconds=1.0)


def measured(name: str) -> EvalResult:
    return EvalResult(
        name=name, num_episodes=1, num_successes=0, success=0.0, interval=(0.0, 1.0),
        mean_score=0.0, score_interval=(0.0, 1.0), mean_turns=1.0,
        policy_version=1, failed_episodes=0, seconds=1.0,
    )  # fmt: skip


STATE: Final[dict[str, Any]] = {
    "run_id": RUN_ID,
    "recipe_hash": "h",
    "left": [left("demonstrations"), left("repeat1.collect"), left("warm", "reinforce"), left("before", "measure")],
    "evals": {"before": measured("before"), "reinforce.step_000010": measured("reinforce.step_000010")},
    "trained": ["reinforce.s000001-g00"],
    "dropped": {"reinforce.s000001-g01": "stale"},
}


@pytest.mark.parametrize(
    "group_id",
    [
        pytest.param("reinforce.s000001-g00", id="trained on"),
        pytest.param("reinforce.s000001-g01", id="dropped"),
        pytest.param("demonstrations.t000003", id="of a finished stage"),
        pytest.param("demonstrations.t000003-r1", id="of a finished stage, played again"),
        pytest.param("repeat1.collect.t000003", id="of a finished stage of a finished round"),
        pytest.param("warm.s000009-g01", id="requested in advance by a stage that ended early"),
        pytest.param("warm.step_000004.t000001", id="measured on the way of a finished stage"),
        pytest.param("before.t000001", id="of a finished measurement"),
        pytest.param("reinforce.step_000010.t000001-r2", id="measured on the way"),
    ],
)
def test_what_is_over_is_settled(group_id: str) -> None:
    assert RunState.model_validate(STATE).settled_before()(group_id)


@pytest.mark.parametrize(
    "group_id",
    [
        pytest.param("reinforce.s000001-g01-r1", id="a replacement of what was dropped"),
        pytest.param("reinforce.s000002-g00", id="of the running stage"),
        pytest.param("reinforce.step_000020.t000001", id="the next measurement on the way"),
        pytest.param("after.t000001", id="of a stage to come"),
        pytest.param("demonstrations2.t000003", id="of a stage whose name begins like a finished one's"),
        pytest.param("repeat2.collect.t000003", id="of the next round"),
        pytest.param("repeat1.sft.t000003", id="of another stage of the round"),
    ],
)
def test_what_is_still_to_come_is_not(group_id: str) -> None:
    assert not RunState.model_validate(STATE).settled_before()(group_id)


def test_a_stage_that_is_running_has_settled_nothing() -> None:
    state = RunState(run_id=RUN_ID, recipe_hash="h", done=3, step=3)

    assert not state.settled_before()("reinforce.s000001-g00")


def test_a_state_is_the_same_after_a_checkpoint() -> None:
    state = RunState.model_validate({**STATE, "done": 2, "first_slot": 12, "cursor": 4, "open_slots": {"a": (3, 1)}})

    assert RunState.model_validate_json(state.model_dump_json()) == state
