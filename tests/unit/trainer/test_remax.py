"""ReMax: numbers worked out by hand."""

from dataclasses import replace

import pytest
from gymfleet_contracts.trajectory import StateValue
from gymfleet_trainer.algorithms.remax import Remax
from gymfleet_trainer.learning.policy_gradient import ClippedOptions
from gymfleet_trainer.model.batching import TrainSequence

from tests.fixtures.scored import make_scored, make_turn
from tests.unit.trainer.test_gigpo import Nothing, played
from tests.unit.trainer.test_monte_carlo import valued


def advantages(*rows: TrainSequence) -> list[list[float]]:
    """Of each row's turns."""
    prepared = Remax(ClippedOptions()).prepare(list(rows), Nothing())  # type: ignore[arg-type]
    assert not any(row.fields["advantages"][~row.mask()].any() for row in prepared)
    return [[row.fields["advantages"][span.start].item() for span in row.turns] for row in prepared]


def test_a_token_is_worth_what_comes_after_it_above_the_greedy_episode() -> None:
    rows = [
        valued(played(0, ("a", 0.0), ("b", 0.25), ("c", 1.0)), 0.5, None, None),
        valued(played(1, ("a", 0.0)), 0.5),
    ]

    assert advantages(*rows) == [[0.75, 0.75, 0.5], [-0.5]]


def test_an_episode_of_several_rows_has_one_baseline() -> None:
    first = valued(played(0, ("a", 0.25)), 0.5)
    second = replace(played(0, ("b", 1.0), first=1))

    assert advantages(first, second) == [[0.75], [0.5]]


def test_without_a_greedy_episode_there_is_no_baseline() -> None:
    with pytest.raises(ValueError, match=r"^run/g/0: its first state has no value, .* the strategy greedy_baseline$"):
        advantages(valued(played(0, ("a", 0.0), ("b", 1.0)), None, 0.5))


def test_a_group_whose_greedy_episode_was_cut_is_dropped() -> None:
    known, unknown = (
        make_scored(turns=(make_turn((1,), (2,)).model_copy(update={"value": value}),), total=1.0)
        for value in (StateValue(mean=0.5, samples=1), None)
    )
    remax = Remax(ClippedOptions())

    assert remax.select([known, known]) == "keep"
    assert remax.select([known, unknown]) == "drop"
