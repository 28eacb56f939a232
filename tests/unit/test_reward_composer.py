"""Composite rewards worked out by hand."""

import math
from typing import Any

import pytest
from gymfleet_contracts.scoring import FormatReward, GoalReward, LengthReward, ScoreRequest, Scoring
from gymfleet_contracts.trajectory import Status, Trajectory
from gymfleet_reward.components import COMPONENTS, Component
from gymfleet_reward.composer import compose, score

from tests.fixtures.trajectories import make_trajectory, make_turn


@pytest.mark.parametrize(
    ("goal", "episode", "value"),
    [
        pytest.param(GoalReward(), {"success": True}, 1.0, id="solved"),
        pytest.param(GoalReward(), {"success": False, "score": 0.9}, -1.0, id="not solved: the score is not looked at"),
        pytest.param(GoalReward(weight=2.0, success=3.0), {"success": True}, 6.0, id="weight times raw"),
        pytest.param(GoalReward(partial=True), {"success": False, "score": 0.25}, -0.5, id="a quarter of the way up"),
        pytest.param(GoalReward(partial=True, failure=0.0), {"score": 0.7}, 0.7, id="from 0 to 1: the score itself"),
    ],
)
def test_goal(goal: GoalReward, episode: dict[str, Any], value: float) -> None:
    reward = compose(make_trajectory(**episode), Scoring(goal=goal))

    assert reward.total == pytest.approx(value)
    assert reward.components["goal"].value == pytest.approx(value)
    assert set(reward.components) == {"goal"}, "what is switched off is not computed"


def test_format_is_the_share_of_replies_that_the_environment_could_use() -> None:
    turns = (
        make_turn(2),
        make_turn(2, format_valid=False),
        make_turn(2, action_valid=False),
        make_turn(2, format_valid=False, action_valid=False),
    )

    reward = compose(make_trajectory(turns=turns), Scoring(format=FormatReward(enabled=True, weight=0.2)))

    assert reward.components["format"].raw == 0.25
    assert reward.total == pytest.approx(1.0 + 0.05)


@pytest.mark.parametrize(
    ("shape", "raw"),
    [  # bounds 3 to 5; replies of 1, 4 and 9 tokens: 2 short, within, 4 over
        pytest.param("linear", (2 + 0 + 4) / 3, id="linear"),
        pytest.param("quadratic", (4 + 0 + 16) / 3, id="quadratic"),
        pytest.param("log", (math.log(3) + math.log(5)) / 3, id="log(1 + excess)"),
    ],
)
def test_length_costs_by_the_token(shape: Any, raw: float) -> None:
    length = LengthReward(enabled=True, weight=-0.1, min_tokens=3, max_tokens=5, shape=shape)

    reward = compose(make_trajectory((1, 4, 9)), Scoring(length=length))

    assert reward.components["length"].raw == pytest.approx(raw)
    assert reward.total == pytest.approx(1.0 - 0.1 * raw)


def test_everything_together_with_its_breakdown_and_its_tokens() -> None:
    scoring = Scoring(
        goal=GoalReward(success=1.0),
        format=FormatReward(enabled=True, weight=0.5),
        length=LengthReward(enabled=True, weight=-0.25, min_tokens=0, max_tokens=1),
        allocation="uniform_positive",
    )

    reward = compose(make_trajectory((3, 2)), scoring)

    # 1 + 0.5 * 1 - 0.25 * (2 + 1) / 2 = 1.125, over five tokens 0.225 each
    assert {name: term.value for name, term in reward.components.items()} == {
        "goal": 1.0, "format": 0.5, "length": -0.375,
    }  # fmt: skip
    assert reward.total == pytest.approx(1.125)
    assert [len(turn) for turn in reward.token_rewards] == [3, 2]
    assert all(token == pytest.approx(0.225) for turn in reward.token_rewards for token in turn)
    assert reward.allocation == "uniform_positive"
    assert reward.scorers == {"goal": "1", "format": "1", "length": "1"}


def test_a_component_that_raises_counts_nothing_and_says_why() -> None:
    def broken(_: Trajectory, __: Scoring) -> float:
        raise RuntimeError("the judge is away")

    judge = Component("judge", "7", lambda _: True, lambda _: 3.0, broken)

    reward = compose(make_trajectory(), Scoring(), [*COMPONENTS, judge])

    assert reward.components["judge"].value == 0.0
    assert reward.components["judge"].error == "RuntimeError: the judge is away"
    assert reward.components["goal"].error is None
    assert reward.total == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1.5, -0.1])
def test_a_score_that_is_none_never_reaches_the_total(bad: float) -> None:
    reward = compose(make_trajectory(score=bad), Scoring(goal=GoalReward(partial=True)))

    assert reward.total == 0.0
    assert reward.components["goal"].error is not None


@pytest.mark.parametrize("section", ["format", "length"])
def test_without_turns_there_are_no_replies_to_judge(section: str) -> None:
    scoring = Scoring.model_validate({section: {"enabled": True, "weight": 1.0}})

    reward = compose(make_trajectory(()), scoring)

    assert reward.components[section].error == "ComponentError: the trajectory has no turns"
    assert reward.total == 1.0
    assert reward.token_rewards == ()


@pytest.mark.parametrize("status", list(Status))
def test_only_what_says_something_about_the_policy_is_rewarded(status: Status) -> None:
    trajectory = make_trajectory(status=status, success=False, score=0.0)

    scored = score(ScoreRequest(trajectory=trajectory))

    assert scored.trajectory == trajectory
    if status in (Status.COMPLETED, Status.TRUNCATED):
        assert scored.reward is not None
        assert scored.reward.total == -1.0
    else:
        assert scored.reward is None, "a failure of the machinery is no reward, not even 0"
