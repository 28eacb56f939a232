"""Bi-level advantages: numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
from gymfleet_trainer.algorithms.turn_ppo import TurnPpo, TurnPpoOptions
from gymfleet_trainer.learning.actor_critic import CriticOptions
from gymfleet_trainer.model.batching import TrainSequence, TurnSpan
from torch import Tensor

from tests.fixtures.train_sequences import train_sequence


class Critic:
    """Says what it is told, row after row."""

    dtype = torch.float64

    def __init__(self, *values: list[float]) -> None:
        self._values = values

    def values(self, rows: list[TrainSequence]) -> list[Tensor]:
        assert [len(row.token_ids) for row in rows] == [len(values) for values in self._values]
        return [torch.tensor(values, dtype=torch.float64) for values in self._values]


def episode(
    mask: str, rewards: list[float], *spans: tuple[int, int], first: int = 0, cut: bool = False
) -> TrainSequence:
    row = train_sequence([1] * len(mask), mask, rewards=rewards, final_prompt=[7] if cut else None)
    return replace(row, turns=tuple(TurnSpan(first + n, start, end, "") for n, (start, end) in enumerate(spans)))


def returns(rows: list[TrainSequence], critic: Critic, **options: float | str) -> list[list[float]]:
    """Of each row's tokens: advantages before they are whitened, plus values."""
    own = {name: value for name, value in options.items() if name.startswith("turn")}
    within = {name: value for name, value in options.items() if name not in own}
    algorithm = TurnPpo(TurnPpoOptions.model_validate({**own, "critic": CriticOptions.model_validate(within)}))
    return [row.fields["returns"].tolist() for row in algorithm.prepare(rows, critic)]  # type: ignore[arg-type]


TURNS = (1, 3), (4, 6)
VALUES = [0.0, 0.1, 0.2, 0.0, 0.3, 0.4]


def test_between_turns_and_within_them() -> None:
    row = episode(".xx.xx", [0.0, 0.0, 0.0, 0.0, 0.0, 1.0], *TURNS)

    (found,) = returns([row], Critic(VALUES), turn_gamma=0.5, turn_lam=0.5, gamma=1.0, lam=0.5)

    # Second turn: 1 - 0.4 = 0.6, within it 0.4 - 0.3 + 0.5 * 0.6 = 0.4.
    # First turn: 0.5 * 0.4 - 0.2 + 0.25 * 0.6 = 0.15, within it 0.2 - 0.1 + 0.5 * 0.15 = 0.175.
    assert found == pytest.approx([0, 0.1 + 0.175, 0.2 + 0.15, 0, 0.3 + 0.4, 0.4 + 0.6])


def test_what_a_turn_gains_it_gains_at_its_end() -> None:
    rows = [
        [episode(".xx.xx", rewards, *TURNS)]
        for rewards in ([0.0, 0.25, 0.25, 0.0, 1.0, 0.0], [0.0, 0.0, 0.5, 0.0, 0.0, 1.0])
    ]

    first, second = (returns(row, Critic(VALUES)) for row in rows)

    assert first == second


def test_without_discounts_every_token_has_the_return() -> None:
    row = episode(".xx.xx", [0.0, 0.0, 0.5, 0.0, 0.0, 1.0], *TURNS)

    (found,) = returns([row], Critic(VALUES), turn_gamma=1.0, turn_lam=1.0, gamma=1.0, lam=1.0)

    assert found == pytest.approx([0, 1.5, 1.5, 0, 1.0, 1.0])


def test_a_cut_episode_goes_on_from_the_value_of_its_last_state_over_several_rows() -> None:
    rows = [
        episode(".x", [0.0, 0.0], (1, 2)),
        episode(".x", [0.0, 0.5], (1, 2), first=1, cut=True),
    ]

    found = returns(rows, Critic([0.0, 0.2], [0.0, 0.4, 0.0, 0.8]), turn_gamma=0.5, turn_lam=1.0)

    # Second turn 0.5 + 0.5 * 0.8 - 0.4 = 0.5; first 0.5 * 0.4 - 0.2 + 0.5 * 0.5 = 0.25.
    assert found == [pytest.approx([0, 0.45]), pytest.approx([0, 0.9])]


def test_a_cut_that_counts_as_an_end_has_nothing_to_come() -> None:
    rows = [
        episode(".x", [0.0, 0.0], (1, 2)),
        episode(".x", [0.0, 0.5], (1, 2), first=1, cut=True),
    ]

    found = returns(rows, Critic([0.0, 0.2], [0.0, 0.4]), turn_gamma=0.5, turn_lam=1.0, cuts="end")

    # Second turn 0.5 - 0.4 = 0.1; first 0.5 * 0.4 - 0.2 + 0.5 * 0.1 = 0.05.
    assert found == [pytest.approx([0, 0.25]), pytest.approx([0, 0.5])]


def test_advantages_are_whitened_over_the_batch() -> None:
    rows = [episode(".xx.xx", [0.0, 0.0, 0.0, 0.0, 0.0, 1.0], *TURNS)]
    prepared = TurnPpo(TurnPpoOptions()).prepare(rows, Critic(VALUES))  # type: ignore[arg-type]

    (row,) = prepared
    trained = row.fields["advantages"][row.mask()]
    assert trained.mean().item() == pytest.approx(0, abs=1e-9)
    assert trained.std().item() == pytest.approx(1, abs=1e-6)
    assert not row.fields["advantages"][~row.mask()].any()
    assert row.fields["values"].tolist() == VALUES


def test_tokens_of_no_turn_are_refused() -> None:
    row = episode(".xx.xx", [0.0] * 6, (1, 3))

    with pytest.raises(ValueError, match="2 trained tokens are of no turn, and turn_ppo gives credit by turn"):
        TurnPpo(TurnPpoOptions()).prepare([row], Critic(VALUES))  # type: ignore[arg-type]
