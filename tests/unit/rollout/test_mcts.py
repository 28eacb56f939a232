"""Monte-Carlo tree search, simulation by simulation, worked out by hand."""

from typing import Any

import pytest

from tests.fixtures.searches import RIGHT, Path, Played, actions
from tests.unit.rollout.test_episode import LEFT, OPEN

VALUES: dict[Path, float] = {
    ("go left",): 0.2, ("go right",): 0.6, ("go right", "go left"): 0.1, ("go left", "go right"): 0.3,
    ("go right", "go right"): 0.9,
}  # fmt: skip
FIXED = {"children": 2, "widening": 0, "value": "evaluator"}


async def test_simulations_go_where_the_bound_is_highest() -> None:
    # 1: left, 0.2. 2: right, 0.6. 3: of 0.2 + sqrt(ln 2) and 0.6 + sqrt(ln 2) right, and there left: 0.1.
    # 4: of 0.2 + sqrt(ln 3) = 1.25 and 0.35 + sqrt(ln 3 / 2) = 1.09 left, and there right: 0.3.
    played = Played("mcts", LEFT, RIGHT, LEFT, RIGHT, worth=VALUES.__getitem__, max_turns=2)

    (found,) = await played.play({**FIXED, "simulations": 4})

    expected: dict[Path, Any] = {
        (): (pytest.approx(0.3), 4),
        ("go left",): (pytest.approx(0.25), 2),
        ("go right",): (pytest.approx(0.35), 2),
        ("go right", "go left"): (pytest.approx(0.1), 1),
        ("go left", "go right"): (pytest.approx(0.3), 1),
    }
    assert played.noted() == expected
    assert actions(found) == ("go left", "go right"), "the best that ended"
    assert found.selected


async def test_without_exploration_they_go_where_it_was_best() -> None:
    played = Played("mcts", LEFT, RIGHT, LEFT, RIGHT, worth=VALUES.__getitem__, max_turns=2)

    (found,) = await played.play({**FIXED, "simulations": 4, "exploration": 0})

    assert actions(found) == ("go right", "go right")


@pytest.mark.parametrize(
    ("select", "fourth"),
    [
        # Left was asked for twice of three times, and visited twice: 0.2 + 2/3 sqrt(3) / 3 = 0.58; right 0.2 + 1/3
        # sqrt(3) / 2 = 0.49.
        pytest.param("puct", ("go left", "go left"), id="what the policy prefers"),
        pytest.param("uct", ("go right", "go left"), id="what was tried less"),
    ],
)
async def test_what_the_policy_asks_for_more_often(select: str, fourth: tuple[str, ...]) -> None:
    played = Played("mcts", LEFT, LEFT, RIGHT, RIGHT, LEFT, worth=lambda path: 0.2, max_turns=2)

    await played.play({**FIXED, "simulations": 4, "select": select})

    assert played.scores.asked == [("go left",), ("go left", "go right"), ("go right",), fourth]


async def test_a_node_is_worth_what_playing_on_from_it_gains() -> None:
    played = Played("mcts", LEFT, RIGHT, OPEN)

    (found,) = await played.play({"simulations": 1})

    assert actions(found) == ("go left", "go right", "open")
    assert played.trees[0].num_forks == 2
    assert played.noted()["go left",] == (1.0, 1)
    assert played.noted()[()] == (1.0, 1)


async def test_more_ways_on_where_it_came_by_more_often() -> None:
    # floor(sqrt(N)) children: a second of the root, which has 4 visits then, by the fifth simulation.
    replies = [f"Thought: on Action: go {n}" for n in range(9)]
    played = Played("mcts", *replies, worth=lambda path: 0.0, max_turns=9)

    await played.play({"children": 1, "widening": 0.5, "value": "evaluator", "simulations": 5})

    assert sum(len(path) == 1 for path in played.noted()) == 2
    assert [len(path) for path in played.scores.asked] == [1, 2, 3, 4, 1]


async def test_the_search_is_over_when_enough_is_good() -> None:
    played = Played("mcts", OPEN)

    await played.play({"simulations": 50, "enough": 1.0})

    assert len(played.door.actions) == 1


async def test_a_policy_that_always_asks_for_the_same_is_played_once() -> None:
    played = Played("mcts", LEFT, max_turns=3)

    (found,) = await played.play({"simulations": 5})

    assert actions(found) == ("go left",) * 3
