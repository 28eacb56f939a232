"""The rewards on docs/rewards.md, as the page has them, against numbers worked out by hand."""

import math
import re
import tomllib
from typing import Any, Final

import pytest
from gymfleet_contracts.reward import RewardSpec
from gymfleet_contracts.trajectory import Trajectory
from gymfleet_reward.component import Component, ComponentError
from gymfleet_reward.composer import Scorer

from tests.fixtures.paths import ROOT
from tests.fixtures.rewards import scored_together
from tests.fixtures.trajectories import make_trajectory, make_turn

EXAMPLES: Final = [
    tomllib.loads(block)["reward"]
    for block in re.findall(r"```toml\n(.*?)```", (ROOT / "docs/rewards.md").read_text("utf-8"), re.DOTALL)
]


def total(tables: dict[str, Any], episode: Trajectory) -> float:
    (one,) = scored_together([episode], RewardSpec.model_validate(tables))
    assert one.reward is not None, one.reward_error
    return one.reward.total


def test_every_example_is_a_reward() -> None:
    scorer = Scorer()
    *alone, served = EXAMPLES

    labels = [[term.label for term in scorer.terms(RewardSpec.model_validate(tables))] for tables in alone]

    assert labels == [
        ["goal", "length", "format"],
        ["environment", "tag_order", "thought_length", "action_path"],
        ["environment", "tag_order", "thought_length", "action_path"],
        ["accuracy", "think_format", "tags", "reasoning_steps", "cosine_length", "repetition"],
        ["goal", "invalid_action"],
    ]
    with pytest.raises(ComponentError, match="there is no reward model 'steps' here: name it in"):
        scorer.terms(RewardSpec.model_validate(served))
    scorer.close()


@pytest.mark.parametrize(
    ("shape", "cost"),
    [  # replies of 500 and 10 tokens: 50 too many, 10 too few
        ("linear", (50 + 10) / 2),
        ("quadratic", (2500 + 100) / 2),
        ("log", (math.log(51) + math.log(11)) / 2),
    ],
)
@pytest.mark.parametrize(("success", "goal"), [(True, 1.0), (False, -1.0)])
@pytest.mark.parametrize("last_good", [True, False])
def test_outcome_format_and_length(shape: str, cost: float, goal: float, *, success: bool, last_good: bool) -> None:
    tables = {**EXAMPLES[0], "length": {**EXAMPLES[0]["length"], "shape": shape}}
    turns = (make_turn(500, format_valid=not last_good), make_turn(10, format_valid=last_good))

    found = total(tables, make_trajectory(turns=turns, success=success))

    assert found == pytest.approx(goal + (0.2 if last_good else 0.0) - 0.01 * cost)


SOLUTION: Final = ["go north", "open box", "take key"]
WHOLE: Final = "<think>a</think><memory>m</memory><plan>p</plan><think>b</think><act>go north</act>"


def four_parts(*rewards: float, actions: tuple[str, ...] = ("go north", "look", "Open  box")) -> Trajectory:
    """Thoughts of 12, 0 and 8 words."""
    turns = [
        make_turn(2, text=WHOLE, thought="word " * count, action=action, reward=reward)
        for count, action, reward in zip((12, 0, 8), actions, rewards, strict=True)
    ]
    return make_trajectory(turns=tuple(turns))


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Component, "private", lambda *_: {"solution": SOLUTION})


@pytest.mark.parametrize(
    ("episode", "value"),
    [
        # 20 of 35 words: .15 * (.5 - .375 * 15/35) = .0509; two of three actions: .35 * 2/3
        pytest.param(four_parts(0.5, 0.0, 0.25), 0.1875 + 0.25 + 0.05089285714 + 0.23333333333, id="two of three"),
        # the environment's 8 count as 5, no action of the solution
        pytest.param(four_parts(8.0, 0, 0, actions=("look",) * 3), 1.25 + 0.25 + 0.05089285714, id="clipped"),
    ],
)
@pytest.mark.usefixtures("solved")
def test_four_parts(episode: Trajectory, value: float) -> None:
    assert total(EXAMPLES[1], episode) == pytest.approx(value)


@pytest.mark.parametrize(
    ("episode", "value"),
    [
        # 8 of 35 words: .5 - .375 * 27/35 = .2107; `look` ends the prefix after one action of three
        pytest.param(four_parts(0.5, 0.0, 0.25), 0.25 * (0.75 + 1 + 0.21071428571 + 1 / 3), id="a prefix of one"),
        pytest.param(
            four_parts(0.0, 0.0, 0.0, actions=("Go north", "open box", "take key")),
            0.25 * (0 + 1 + 0.21071428571 + 1),
            id="the whole solution",
        ),
    ],
)
@pytest.mark.usefixtures("solved")
def test_four_parts_in_their_other_form(episode: Trajectory, value: float) -> None:
    assert total(EXAMPLES[2], episode) == pytest.approx(value)


def test_without_a_solution_there_is_no_reward() -> None:
    (one,) = scored_together([four_parts(0, 0, 0)], RewardSpec.model_validate(EXAMPLES[1]))

    assert one.reward is None
    assert "the episode has no private.solution" in str(one.reward_error)


def test_queries_that_do_not_run_cost_their_turn() -> None:
    turns = (make_turn(2, action_valid=False), make_turn(3))

    assert total(EXAMPLES[4], make_trajectory(turns=turns, success=True)) == pytest.approx(0.9)
    assert total(EXAMPLES[4], make_trajectory(turns=turns, success=False)) == pytest.approx(-0.1)
