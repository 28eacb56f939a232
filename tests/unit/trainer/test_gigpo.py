"""GiGPO: numbers worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymfleet_trainer.algorithms.gigpo import Gigpo, GigpoOptions
from gymfleet_trainer.learning.steps import discounted
from gymfleet_trainer.model.batching import TrainSequence, TurnSpan

from tests.fixtures.train_sequences import train_sequence


class Nothing:
    """No models."""

    dtype = torch.float64


def played(
    sample: int, *turns: tuple[str, float], group: str = "run/g", mask: str = "", first: int = 0
) -> TrainSequence:
    """An episode: before each turn a token of an observation, then one that the model wrote; anchors and rewards."""
    row = train_sequence(
        [1] * (2 * len(turns)), mask or ".x" * len(turns),
        rewards=[value for _, reward in turns for value in (0.0, reward)], name=f"{group}/{sample}",
    )  # fmt: skip
    spans = [TurnSpan(first + place, 2 * place + 1, 2 * place + 2, anchor) for place, (anchor, _) in enumerate(turns)]
    return replace(row, turns=tuple(spans))


def advantages(rows: Sequence[TrainSequence], **options: Any) -> list[list[float]]:
    """Of each row's turns."""
    prepared = Gigpo(GigpoOptions.model_validate(options)).prepare(list(rows), Nothing())  # type: ignore[arg-type]
    assert not any(row.fields["advantages"][~row.mask()].any() for row in prepared)
    return [[row.fields["advantages"][span.start].item() for span in row.turns] for row in prepared]


def close(found: list[list[float]], *wanted: list[float]) -> bool:
    return found == [pytest.approx(row, abs=1e-5) for row in wanted]


def test_a_turn_is_compared_with_others_in_its_state() -> None:
    # Returns 1 and 0: episodes +-0.5. From "a" on 0.5 * 1 and 0; "b" and "c" are played in once.
    rows = [played(0, ("a", 0.0), ("b", 1.0)), played(1, ("a", 0.0), ("c", 0.0))]

    assert close(advantages(rows, gamma=0.5), [0.5 + 0.25, 0.5], [-0.5 - 0.25, -0.5])
    assert close(advantages(rows, gamma=0.5, step_weight=2.0), [0.5 + 0.5, 0.5], [-0.5 - 0.5, -0.5])
    assert close(advantages(rows, gamma=0.5, step_weight=0.0), [0.5, 0.5], [-0.5, -0.5])


def test_a_state_may_be_come_to_again_by_the_same_episode() -> None:
    # From "a" on: 0.25, 0.5 and 1 in the first, 0 in the second; mean 7/16.
    rows = [played(0, ("a", 0.0), ("a", 0.0), ("a", 1.0)), played(1, ("a", 0.0))]

    found = advantages(rows, gamma=0.5)

    assert close(found, [0.5 + 0.25 - 0.4375, 0.5 + 0.5 - 0.4375, 0.5 + 1 - 0.4375], [-0.5 - 0.4375])


def test_rewards_of_single_turns_count_from_their_turn_on() -> None:
    rows = [played(0, ("a", 1.0), ("b", 0.0)), played(1, ("b", 0.0), ("a", 1.0))]

    assert close(advantages(rows, gamma=0.5), [0.0, -0.25], [0.25, 0.0])


def test_groups_may_be_divided_by_their_standard_deviation() -> None:
    rows = [played(0, ("a", 0.0), ("b", 3.0)), played(1, ("a", 1.0), ("c", 0.0))]

    # Episodes: 3 and 1, std sqrt(2). From "a" on: 1.5 and 1, std 0.5 / sqrt(2).
    half = 2**-0.5
    assert close(advantages(rows, gamma=0.5, mode="mean_std_norm"), [2 * half, half], [-2 * half, -half])


def test_states_of_other_groups_are_other_states() -> None:
    rows = [played(sample, ("a", float(sample)), group=group) for group in ("run/g", "run/h") for sample in range(2)]
    alone = advantages(rows[:2])

    assert close(advantages(rows), *alone, *alone)
    assert close(alone, [-1.0], [1.0])


def test_an_episode_of_several_rows_is_one() -> None:
    whole = [played(0, ("a", 0.0), ("b", 1.0)), played(1, ("b", 0.5), ("a", 0.0))]
    parted = [played(0, ("a", 0.0)), played(0, ("b", 1.0), first=1), whole[1]]

    assert [value for row in advantages(parted) for value in row] == [
        value for row in advantages(whole) for value in row
    ]


def test_a_turn_that_is_not_trained_is_no_step() -> None:
    rows = [played(0, ("a", 0.0), ("b", 0.0), ("c", 1.0), mask=".x...x"), played(1, ("a", 0.0), ("b", 0.0))]

    # From "a" on it is one step to the reward, not two; "b" is played in once.
    assert close(advantages(rows, gamma=0.5), [0.5 + 0.25, 0.0, 0.5], [-0.5 - 0.25, -0.5])


def test_groups_without_spread_have_no_gradient() -> None:
    rows = [played(0, ("a", 0.1), ("b", 0.2)), played(1, ("a", 0.1), ("b", 0.2))]

    for mode in ("mean_norm", "mean_std_norm"):
        assert advantages(rows, mode=mode) == [[0.0, 0.0], [0.0, 0.0]]


def test_a_group_of_one_has_no_baseline() -> None:
    with pytest.raises(ValueError, match="groups of one have no baseline"):
        advantages([played(0, ("a", 1.0))])


def test_tokens_of_no_turn_are_refused() -> None:
    rows = [replace(played(sample, ("a", 0.0), ("b", 1.0)), turns=()) for sample in range(2)]

    with pytest.raises(ValueError, match="run/g/0: 2 trained tokens are of no turn, and gigpo gives credit by turn"):
        advantages(rows)


def test_it_says_how_many_tokens_were_compared_within_a_state() -> None:
    rows = [played(0, ("a", 0.0), ("b", 1.0)), played(1, ("a", 0.0))]

    prepared = Gigpo(GigpoOptions()).prepare(rows, Nothing())  # type: ignore[arg-type]

    assert [row.fields["compared_turns"].tolist() for row in prepared] == [[0, 1, 0, 0], [0, 1]]


def test_discounts_are_per_turn() -> None:
    assert discounted([1.0, 0.0, 4.0], 0.5) == [2.0, 2.0, 4.0]
    assert discounted([], 0.5) == []
