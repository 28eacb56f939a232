"""Imitation with a budget of tokens: as few epochs as it takes, all alike, and never more than the budget."""

from typing import Any

import pytest
from gymfleet_contracts.stages import PlannedStage
from gymfleet_trainer.errors import NothingLeft
from gymfleet_trainer.model.batching import TrainSequence
from gymfleet_trainer.stages.sft import SftOptions, Supervised


def sequence(number: int, num_trained: int) -> TrainSequence:
    """One token of a prompt, and those that are trained."""
    nothing = [0.0] * (num_trained + 1)
    return TrainSequence(
        list(range(num_trained + 1)), [False] + [True] * num_trained, nothing, nothing, 0, f"conversation/{number}"
    )


SEQUENCES = [sequence(number, 10) for number in range(7)]


def tokens(sequences: list[TrainSequence], **options: Any) -> list[int]:
    return [sum(one.num_trained for one in share) for share in shares(sequences, **options)]


def shares(sequences: list[TrainSequence], seed: int = 0, **options: Any) -> list[list[TrainSequence]]:
    given = {"data": "collect", "epochs": 10, **options}
    return Supervised(
        PlannedStage("sft", "sft", "stages.sft", given, {"collect": "collect"}), SftOptions(**given)
    )._epochs([sequences], seed)


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"epochs": 2}, [70, 70]),
        ({"max_tokens": 70}, [70]),
        ({"max_tokens": 210}, [70, 70, 70]),
        ({"max_tokens": 30}, [30]),
        ({"max_tokens": 39}, [30]),
        ({"max_tokens": 100}, [50, 50]),
        ({"max_tokens": 150}, [50, 50, 50]),
        ({"max_tokens": 170}, [50, 60, 60]),
    ],
)
def test_how_many_tokens_each_epoch_has(options: dict[str, Any], epochs: list[int]) -> None:
    assert tokens(SEQUENCES, **options) == epochs


def test_each_epoch_draws_anew_and_every_time_the_same() -> None:
    first, second = shares(SEQUENCES, max_tokens=100)

    assert [one.trajectory_id for one in first] != [one.trajectory_id for one in second]
    assert [first, second] == shares(SEQUENCES, max_tokens=100)
    assert [first, second] != shares(SEQUENCES, seed=1, max_tokens=100), "runs of other seeds draw others"


def test_a_short_record_fills_what_a_long_one_leaves() -> None:
    given = [sequence(0, 60), sequence(1, 60), sequence(2, 5), sequence(3, 0)]

    assert tokens(given, max_tokens=70) == [65]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"max_tokens": 141, "epochs": 2},
            "stages.sft: max_tokens = 141 takes 3 epochs of the 70 tokens of collect, and epochs is 2",
        ),
        ({"max_tokens": 9}, "stages.sft: max_tokens = 9 is less than the tokens of any record"),
    ],
)
def test_a_budget_that_does_not_suit_is_a_line(options: dict[str, Any], told: str) -> None:
    with pytest.raises(NothingLeft) as caught:
        shares(SEQUENCES, **options)

    assert str(caught.value) == told


def test_sources_are_mixed_by_their_weights() -> None:
    """Of two thirds of 3 records and twice 2 others there are 2 and 4 in every epoch; which two is drawn anew."""
    first, second = [sequence(number, 1) for number in range(3)], [sequence(number, 1) for number in (7, 8)]
    given: dict[str, Any] = {"data": ("a", "b"), "epochs": 20, "weights": (2 / 3, 2.0)}
    stage = Supervised(
        PlannedStage("sft", "sft", "stages.sft", given, {"a": "a", "b": "b"}), SftOptions(**given)
    )  # fmt: skip

    epochs = stage._epochs([first, second], 0)

    assert {len(epoch) for epoch in epochs} == {6}
    assert all(epoch.count(one) == 2 for epoch in epochs for one in second)
    drawn = [frozenset(number for number, one in enumerate(first) if one in epoch) for epoch in epochs]
    assert set(drawn) == {frozenset({0, 1}), frozenset({0, 2}), frozenset({1, 2})}
    assert epochs == stage._epochs([first, second], 0)
    assert epochs != stage._epochs([first, second], 1)


def test_weights_that_leave_nothing_are_a_line() -> None:
    with pytest.raises(NothingLeft, match=r"stages\.sft: weights leave none of the 7 records of an epoch"):
        shares(SEQUENCES, weights=(0.01,))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"data": ("a", "b"), "weights": (1.0,)}, "weights: 1 are given, and data names 2 sources"),
        ({"data": "a", "weights": (1.0,), "max_tokens": 5}, "weights: with max_tokens, which draws from all records"),
    ],
)
def test_weights_that_do_not_suit_the_rest_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        SftOptions(**options)
