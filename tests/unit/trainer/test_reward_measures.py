"""Accuracy, calibration and what can be told without a model, worked out by hand."""

import math

import pytest
from gymfleet_kit.chat.transcripts import Transcript
from gymfleet_trainer.learning.reward_data import Example, Pair
from gymfleet_trainer.learning.reward_measures import (
    LastLineBaseline,
    LengthBaseline,
    accuracy,
    calibration,
    calibration_error,
    sigmoid,
    sureness,
)

from tests.fixtures.scored import make_scored, make_turn


def test_accuracy_counts_equal_numbers_half() -> None:
    assert accuracy([1.0, 0.0, 2.0, 3.0], [0.0, 1.0, 2.0, -3.0]) == 0.625
    assert math.isnan(accuracy([], []))


def test_calibration_compares_what_was_said_with_what_happened() -> None:
    bins = calibration([0.62, 0.68, 0.95, 1.0, 0.91, 0.99], [1.0, 0.0, 1.0, 1.0, 0.0, 0.5])

    assert [one.predicted for one in bins] == pytest.approx([0.65, 0.9625])
    assert [(one.happened, one.count) for one in bins] == [(0.5, 2), (0.625, 4)]
    assert calibration_error(bins) == pytest.approx((2 * 0.15 + 4 * 0.3375) / 6)
    assert math.isnan(calibration_error([]))


def test_a_model_is_as_sure_as_its_numbers_are_apart() -> None:
    probabilities, right = sureness([math.log(3), 0.0, 1.0], [0.0, math.log(4), 1.0])

    assert probabilities == pytest.approx([0.75, 0.8, 0.5])
    assert right == [1.0, 0.0, 0.5]
    assert sigmoid(-1000.0) == 0.0


def example(length: int, text: str = "") -> Example:
    turn = make_turn().model_copy(update={"text": text})
    return Example(make_scored(turns=(turn,)), Transcript([1] * length), 0.0)


@pytest.mark.parametrize(("better", "worse"), [((5, 6, 2), (7, 8, 9)), ((7, 8, 9), (5, 6, 2))])
def test_the_length_tells_what_it_told_before(better: tuple[int, ...], worse: tuple[int, ...]) -> None:
    pairs = [Pair(example(one), example(other)) for one, other in zip(better, worse, strict=True)]
    baseline = LengthBaseline([*pairs, Pair(example(3), example(3))])

    assert baseline.accuracy(pairs) == 1.0
    assert baseline.accuracy([Pair(pair.rejected, pair.chosen) for pair in pairs]) == 0.0
    assert baseline.accuracy([Pair(example(4), example(4))]) == 0.5


def test_the_last_line_tells_by_its_words() -> None:
    """Good: stop, here; bad: go, on. Of the last line alone, and words that were never seen tell nothing."""
    pairs = [Pair(example(1, "go on\nStop here"), example(1, "stop here\ngo on\n"))]
    baseline = LastLineBaseline(pairs)

    assert baseline.accuracy(pairs) == 1.0
    assert baseline.accuracy([Pair(example(1, "stop"), example(1, "here"))]) == 0.5
    assert baseline.accuracy([Pair(example(1, "on"), example(1, "never"))]) == 0.0
    assert baseline.accuracy([Pair(example(1, "stop\nnever"), example(1, "go\nseen"))]) == 0.5
