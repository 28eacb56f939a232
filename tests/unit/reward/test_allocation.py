"""Token rewards worked out by hand, and what they must add up to."""

import math
from typing import get_args

import pytest
from gymfleet_contracts.reward import Allocation
from gymfleet_reward.allocation import TokenRewards, allocate
from hypothesis import given
from hypothesis import strategies as st

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)
TOTALS = st.floats(-1e6, 1e6)
GAMMAS = st.floats(0.01, 1.0)


@pytest.mark.parametrize(
    ("name", "total", "lengths", "gamma", "expected"),
    [
        pytest.param("last_token", 1.5, (3, 2), 1.0, ((0, 0, 0), (0, 1.5)), id="last token of the last turn"),
        pytest.param("last_token", -1.0, (2, 0), 1.0, ((0, -1.0), ()), id="an empty last turn: the one before"),
        pytest.param("last_token", 1.0, (0, 0), 1.0, ((), ()), id="no tokens: nowhere to put it"),
        pytest.param("last_token", 1.0, (), 1.0, (), id="no turns"),
        pytest.param("uniform_positive", 1.0, (3, 1), 1.0, ((0.25,) * 3, (0.25,)), id="a gain is shared by all"),
        pytest.param("uniform_positive", -2.0, (2, 2), 1.0, ((0, 0), (0, -2.0)), id="a loss is on the last token"),
        pytest.param("uniform_positive", 0.0, (2, 0, 1), 1.0, ((0, 0), (), (0,)), id="nothing to share"),
        pytest.param("uniform_positive", 3.0, (2, 0, 1), 1.0, ((1, 1), (), (1,)), id="an empty turn takes no part"),
        pytest.param("uniform_positive", 3.0, (0,), 1.0, ((),), id="uniform without tokens"),
        # gamma 0.5, turns of 2 and 1: c_2 = 4, c_1 = 4 * 0.5^1 = 2. The discount is by the *later* turn's length.
        pytest.param("discounted", 4.0, (2, 1), 0.5, ((1.0, 1.0), (4.0,)), id="discounted by the turns that follow"),
        # Lengths 1, 2, 1: c_3 = 8, c_2 = 4 (2 tokens, 2 each), c_1 = 4 * 0.5^2 = 1.
        pytest.param("discounted", 8.0, (1, 2, 1), 0.5, ((1.0,), (2.0, 2.0), (8.0,)), id="twice discounted"),
        pytest.param("discounted", 1.0, (1, 1, 1), 1.0, ((1.0,), (1.0,), (1.0,)), id="gamma 1: K turns get K * R"),
        pytest.param("discounted", 4.0, (2, 0, 1), 0.5, ((1.0, 1.0), (), (4.0,)), id="an empty turn discounts nothing"),
        # Weights 1/4, 1/2, 1 of sum 7/4: 7 gives 1, 2, 4.
        pytest.param(
            "discounted_normalised", 7.0, (1, 1, 1), 0.5, ((1.0,), (2.0,), (4.0,)), id="same proportions, sum R"
        ),
        pytest.param(
            "discounted_normalised", -6.0, (1, 0, 2), 1.0, ((-3.0,), (), (-1.5, -1.5)), id="gamma 1: equal turns"
        ),
        pytest.param("discounted_normalised", 1.0, (0,), 0.5, ((),), id="normalised without tokens"),
    ],
)
def test_by_hand(
    name: Allocation, total: float, lengths: tuple[int, ...], gamma: float, expected: TokenRewards
) -> None:
    rewards = allocate(name, total, lengths, gamma)

    assert len(rewards) == len(expected)
    for turn, wanted in zip(rewards, expected, strict=True):
        assert turn == pytest.approx(wanted)


def test_discounting_four_turns_does_not_conserve_the_total() -> None:
    rewards = allocate("discounted", 1.0, (50, 50, 50, 50), 0.99)

    # 1 + 0.99^50 + 0.99^100 + 0.99^150
    assert math.fsum(sum(turn) for turn in rewards) == pytest.approx(2.1925, abs=1e-4)


@pytest.mark.parametrize("name", ["last_token", "uniform_positive", "discounted_normalised"])
@given(total=TOTALS, lengths=LENGTHS, gamma=GAMMAS)
def test_the_total_is_conserved(name: Allocation, total: float, lengths: list[int], gamma: float) -> None:
    rewards = allocate(name, total, lengths, gamma)

    assert math.fsum(token for turn in rewards for token in turn) == pytest.approx(total, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", get_args(Allocation))
@given(total=TOTALS, lengths=LENGTHS, gamma=GAMMAS)
def test_every_token_has_its_reward(name: Allocation, total: float, lengths: list[int], gamma: float) -> None:
    rewards = allocate(name, total, lengths, gamma)

    assert [len(turn) for turn in rewards] == lengths
    assert all(math.isfinite(token) for turn in rewards for token in turn)


def test_a_very_long_episode_does_not_underflow_into_an_error() -> None:
    rewards = allocate("discounted_normalised", 1.0, (100_000, 100_000, 100), 0.5)

    assert sum(rewards[2]) == pytest.approx(1.0)
    assert rewards[0][0] == 0.0
