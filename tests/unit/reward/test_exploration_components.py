"""Components for exploring and for predicting: numbers worked out by hand."""

from typing import Any

import pytest
from gymfleet_contracts.comparing import words_f1
from gymfleet_contracts.trajectory import Trajectory

from tests.fixtures.rewards import make_spec, reward_of, scored_together
from tests.fixtures.trajectories import make_trajectory, make_turn


def acted(sample: int, *actions: str | None) -> Trajectory:
    turns = tuple(make_turn(2).model_copy(update={"action": action}) for action in actions)
    return make_trajectory(sample=sample, turns=turns)


def predicted(*given: tuple[str, str, str | None]) -> Trajectory:
    """Turns by observation, prediction and action; the last action led to a closed box."""
    turns = tuple(
        make_turn(2).model_copy(
            update={"observation": seen, "notes": {"prediction": said} if said else {}, "action": action}
        )
        for seen, said, action in given
    )
    return make_trajectory(turns=turns).model_copy(update={"final_observation": "The box is closed."})


@pytest.mark.parametrize(
    ("given", "wanted", "value"),
    [
        pytest.param("a red box", "The box is closed", 2 * 1 / (2 + 3), id="box; articles do not count"),
        pytest.param("Box is closed!", "the box is closed", 1.0, id="all"),
        pytest.param("", "box", 0.0, id="nothing said"),
        pytest.param("the", "", 1.0, id="nothing on either side"),
    ],
)
def test_words_in_common(given: str, wanted: str, value: float) -> None:
    assert words_f1(given, wanted) == pytest.approx(value)


@pytest.mark.parametrize(
    ("turns", "value"),
    [
        ([("A room.", "the box is closed", "look")], 1.0),
        ([("A room.", "a red box", "look")], 0.4),
        ([("A room.", "", "look")], 0.0),
        ([("A room.", "the box is closed", None)], 0.0),
        ([("A room.", "a key", "look"), ("A key.", "box", "look"), ("?", "", "look")], (1.0 + 0.0 + 0.0) / 3),
        ([("A room.", "a key", "look"), ("A key.", "a red box", "look")], (1.0 + 0.4) / 2),
    ],
)
def test_a_prediction_is_compared_with_what_was_observed(turns: list[Any], value: float) -> None:
    spec = make_spec(goal={"enabled": False}, prediction={"weight": 1.0})

    assert reward_of(predicted(*turns), spec).total == pytest.approx(value)


@pytest.mark.parametrize(
    ("actions", "shares"),
    [
        pytest.param(1, [1 / 3, 1 / 3, 1 / 3, 1.0], id="the first action"),
        pytest.param(2, [2 / 3, 2 / 3, 1.0, 1.0], id="the first two"),
    ],
)
def test_the_share_of_the_others_that_went_another_way(actions: int, shares: list[float]) -> None:
    group = [acted(0, "a", "b", "x"), acted(1, "a", "b"), acted(2, "a", "c"), acted(3, None, "b")]
    spec = make_spec(goal={"enabled": False}, group_diversity={"weight": 0.5, "actions": actions})

    rewards = [scored.reward for scored in scored_together(group, spec, num_samples=4)]

    assert [reward.total for reward in rewards if reward is not None] == pytest.approx([0.5 * s for s in shares])


def test_an_episode_by_itself_went_no_other_way() -> None:
    spec = make_spec(goal={"enabled": False}, group_diversity={"weight": 0.5})

    (alone,) = scored_together([acted(0, "a")], spec, num_samples=1)

    assert alone.reward is not None
    assert alone.reward.total == 0.0
