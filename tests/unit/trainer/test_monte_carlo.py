"""Monte-Carlo credit: numbers worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from gymfleet_contracts.trajectory import ScoredTrajectory, StateValue
from gymfleet_trainer.algorithms.monte_carlo import MonteCarlo, MonteCarloOptions
from gymfleet_trainer.learning.algorithm import Sample, Verdict
from gymfleet_trainer.model.batching import TrainSequence
from pydantic import ValidationError

from tests.fixtures.scored import make_scored, make_turn
from tests.unit.trainer.test_gigpo import Nothing, played


def valued(row: TrainSequence, *values: float | None) -> TrainSequence:
    """With what the states were worth in which its turns were played."""
    worth = [None if value is None else StateValue(mean=value, samples=4) for value in values]
    turns = [replace(span, value=value) for span, value in zip(row.turns, worth, strict=True)]
    return replace(row, turns=tuple(turns))


def advantages(*rows: TrainSequence, whiten: bool = False) -> list[list[float]]:
    """Of each row's turns."""
    prepared = MonteCarlo(MonteCarloOptions(whiten=whiten)).prepare(list(rows), Nothing())  # type: ignore[arg-type]
    assert not any(row.fields["advantages"][~row.mask()].any() for row in prepared)
    return [[row.fields["advantages"][span.start].item() for span in row.turns] for row in prepared]


def test_a_turn_is_worth_by_how_much_the_value_rose() -> None:
    row = valued(played(0, ("a", 0.0), ("b", 0.0), ("c", 1.0)), 0.25, 0.75, 0.5)

    assert advantages(row) == [[0.5, -0.25, 0.5]]


def test_turns_between_values_share_what_came_of_them() -> None:
    row = valued(played(0, ("a", 0.0), ("b", 0.0), ("c", 0.0), ("d", 1.0)), 0.25, None, 0.5, None)

    assert advantages(row) == [[0.25, 0.25, 0.5, 0.5]]


def test_rewards_on_the_way_are_part_of_what_an_episode_gained() -> None:
    row = valued(played(0, ("a", 0.5), ("b", -0.25)), 0.0, 1.0)

    assert advantages(row) == [[1.0, 0.25 - 1.0]]


def test_a_first_state_without_a_value_is_compared_with_the_other_episodes() -> None:
    rows = [
        valued(played(0, ("a", 0.0), ("b", 1.0)), None, 0.75),
        played(1, ("a", 0.0)),
        played(2, ("a", 0.5)),
        valued(played(0, ("a", 2.0), group="run/h"), 1.5),
    ]

    assert advantages(*rows) == [[0.5, 0.25], [-0.75], [0.0], [0.5]]


def test_an_episode_of_several_rows_is_one() -> None:
    rows = [valued(played(0, ("a", 0.0)), 0.25), valued(played(0, ("b", 1.0), first=1), 0.75)]

    assert advantages(*rows) == [[0.5], [0.25]]


@pytest.mark.parametrize(
    ("values", "num_episodes", "verdict"),
    [
        ([0.5, None], 1, Verdict.KEEP),
        ([None, 0.5], 1, Verdict.DROP),
        ([], 1, Verdict.DROP),
        ([None, None], 2, Verdict.KEEP),
    ],
)
def test_an_episode_that_nothing_can_be_compared_with_is_dropped(
    values: list[float | None], num_episodes: int, verdict: Verdict
) -> None:
    worth = [None if value is None else StateValue(mean=value, samples=4) for value in values]
    turns = tuple(make_turn().model_copy(update={"value": value}) for value in worth)
    group = [make_scored(sample=sample, turns=turns) for sample in range(num_episodes)]

    assert MonteCarlo(MonteCarloOptions()).select(group) is verdict


def test_advantages_may_be_whitened() -> None:
    row = valued(played(0, ("a", 0.0), ("b", 0.0), ("c", 1.0)), 0.0, 1.0, 1.0)

    (found,) = advantages(row, whiten=True)

    # 1, 0 and 0: mean 1/3, variance 1/3.
    assert found == pytest.approx([2 / 3 * 3**0.5, -(3**-0.5), -(3**-0.5)], abs=1e-6)


def test_turns_in_a_state_with_a_value_are_told_from_the_others() -> None:
    rows = [valued(played(0, ("a", 0.0), ("b", 1.0)), None, 0.75), played(1, ("a", 0.0))]

    prepared = MonteCarlo(MonteCarloOptions()).prepare(rows, Nothing())  # type: ignore[arg-type]

    told = [[row.fields["valued_turns"][span.start].item() for span in row.turns] for row in prepared]
    assert told == [[0, 1], [0]]
    assert not any(row.fields["valued_turns"][~row.mask()].any() for row in prepared)


def test_an_episode_that_is_alone_needs_a_value() -> None:
    with pytest.raises(ValueError, match=r"run/g/0: its first state has no value, and its group no other episode"):
        advantages(played(0, ("a", 1.0)))


def test_values_hold_no_kl() -> None:
    with pytest.raises(ValidationError, match='values of states hold no KL estimate: give placement = "loss"'):
        MonteCarloOptions.model_validate({"kl": {"coefficient": 0.1, "placement": "reward"}})
    MonteCarloOptions.model_validate({"kl": {"coefficient": 0.1}})


def forked(sample: int, *nodes: tuple[str, str]) -> ScoredTrajectory:
    turns = [make_turn().model_copy(update={"parent": parent, "node": node}) for parent, node in nodes]
    return make_scored("g", sample, turns=tuple(turns))


def masks(group: Sequence[ScoredTrajectory]) -> list[list[bool]]:
    """Which turns of each row are trained."""
    rows = MonteCarlo(MonteCarloOptions()).rows([Sample(scored, 0) for scored in group])
    assert all(sum(row.loss_mask) == 2 * sum(row.loss_mask[s.start] for s in row.turns) for row in rows)
    return [[row.loss_mask[span.start] for span in row.turns] for row in rows]


def test_turns_that_several_episodes_share_are_trained_once() -> None:
    group = [
        forked(0, ("0", "1"), ("1", "2")),
        forked(1, ("0", "1"), ("1", "2-1.1")),
        forked(2, ("0", "1-0.1"), ("1-0.1", "2-0.1")),
    ]

    assert masks(group) == [[True, True], [False, True], [True, True]]
    plain = [make_scored("g", sample, turns=(make_turn(), make_turn())) for sample in range(2)]
    assert masks(plain) == [[True, True], [True, True]], "equal turns that were sampled apart"
