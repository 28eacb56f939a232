"""How an agent went about a task: mistakes, what was mended, what was useful."""

import pytest
from gymfleet_contracts.trajectory import Turn
from gymfleet_kit.conduct import Mistakes, is_understood, mistakes, num_useful

from tests.fixtures.trajectories import make_turn


def turns(*told: tuple[str, str | None, bool]) -> list[Turn]:
    """One turn for each (observation, action, whether it was understood)."""
    return [
        make_turn(1).model_copy(update={"observation": seen, "action": action, "action_valid": valid})
        for seen, action, valid in told
    ]


GOOD, BAD, NONE = ("a", "go", True), ("a", "fly", False), ("a", None, False)


def test_a_reply_is_understood_if_its_action_is() -> None:
    assert [is_understood(turn) for turn in turns(GOOD, BAD, NONE, ("a", None, True))] == [True, False, False, False]


@pytest.mark.parametrize(
    ("told", "within", "expected"),
    [
        ([GOOD], 1, Mistakes(0, 0)),
        ([BAD, GOOD, NONE], 1, Mistakes(2, 1)),
        ([BAD, BAD, GOOD], 1, Mistakes(2, 1)),
        ([BAD, BAD, GOOD], 2, Mistakes(2, 2)),
        ([], 1, Mistakes(0, 0)),
    ],
)
def test_mistakes_and_those_that_were_mended(
    told: list[tuple[str, str | None, bool]], within: int, expected: Mistakes
) -> None:
    assert mistakes(turns(*told), within=within) == expected


def test_an_action_is_useful_once_upon_each_sight() -> None:
    assert num_useful(turns(GOOD, GOOD, ("b", "go", True), BAD, NONE, ("a", "look", True))) == 3
