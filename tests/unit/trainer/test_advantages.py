"""Advantage estimators against numbers worked out by hand."""

import math

import pytest
import torch
from gymfleet_trainer.learning.advantages import (
    gae,
    grpo_advantages,
    masked_whiten,
    rloo_advantages,
)
from torch import Tensor


def close(actual: Tensor, expected: list[float] | list[list[float]], tolerance: float = 1e-5) -> bool:
    return torch.allclose(actual, torch.tensor(expected), atol=tolerance)


def test_grpo_is_the_distance_from_the_groups_mean_in_unbiased_standard_deviations() -> None:
    # Group a: 1, 0, 0, 1: mean 1/2, variance (4 * 1/4) / 3 = 1/3. Group b: 3, 5: mean 4, variance 2 / 1.
    returns = torch.tensor([1.0, 3.0, 0.0, 0.0, 5.0, 1.0])

    advantages = grpo_advantages(returns, ["a", "b", "a", "a", "b", "a"], normalise_by_std=True)

    a, b = 0.5 * math.sqrt(3), 1 / math.sqrt(2)
    assert close(advantages, [a, -b, -a, -a, b, a])


def test_grpo_without_division_is_the_centred_return() -> None:
    advantages = grpo_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), [0, 0, 0, 0], normalise_by_std=False)

    assert advantages.tolist() == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("value", [0.0, 0.1, -1.0, 0.3333333])
@pytest.mark.parametrize("normalise", [True, False])
def test_equal_returns_give_exactly_no_signal(value: float, normalise: bool) -> None:
    advantages = grpo_advantages(torch.full((7,), value), ["g"] * 7, normalise_by_std=normalise)

    assert advantages.tolist() == [0.0] * 7


def test_a_group_of_one_has_no_baseline() -> None:
    with pytest.raises(ValueError, match=r"groups of one.*\['b'\]"):
        grpo_advantages(torch.tensor([1.0, 2.0, 3.0, 4.0]), ["a", "b", "a", "a"], normalise_by_std=True)


def test_every_return_needs_its_group() -> None:
    with pytest.raises(ValueError, match="3 returns need as many group ids, not 2"):
        rloo_advantages(torch.ones(3), ["a", "a"])


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    # 1 - (2 + 6) / 2 = -3;  2 - (1 + 6) / 2 = -1.5;  6 - (1 + 2) / 2 = 4.5
    assert close(rloo_advantages(torch.tensor([1.0, 2.0, 6.0]), ["g"] * 3), [-3.0, -1.5, 4.5])


def test_gae_on_one_uninterrupted_turn() -> None:
    # Backwards, gamma 0.5, lambda 0.5: d2 = 1 - 0.4 = 0.6; A2 = 0.6.
    # d1 = 0 + 0.5 * 0.4 - 0.2 = 0; A1 = 0.25 * 0.6 = 0.15. d0 = 0.5 * 0.2 - 0.1 = 0; A0 = 0.25 * 0.15 = 0.0375.
    rewards = torch.tensor([[0.0, 0.0, 1.0]])
    values = torch.tensor([[0.1, 0.2, 0.4]])

    advantages, returns = gae(rewards, values, torch.zeros(1), torch.ones(1, 3, dtype=torch.bool), 0.5, 0.5)

    assert close(advantages, [[0.0375, 0.15, 0.6]])
    assert close(returns, [[0.1375, 0.35, 1.0]])


def test_gae_skips_observation_tokens() -> None:
    # The same turn as above with an observation in its middle, whose value of 50 must not be bootstrapped from.
    rewards = torch.tensor([[7.0, 0.0, 0.0, 7.0, 7.0, 1.0, 7.0]])
    values = torch.tensor([[50.0, 0.1, 0.2, 50.0, 50.0, 0.4, 50.0]])
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 0]], dtype=torch.bool)

    advantages, returns = gae(rewards, values, torch.zeros(len(rewards)), mask, 0.5, 0.5)

    assert close(advantages, [[0.0, 0.0375, 0.15, 0.0, 0.0, 0.6, 0.0]])
    assert close(returns, [[0.0, 0.1375, 0.35, 0.0, 0.0, 1.0, 0.0]])


def test_gae_goes_on_from_the_value_of_the_state_in_which_an_episode_was_cut() -> None:
    # Nothing was gained and the critic expects 0.8 throughout. Cut: as expected, all deltas are 0. Ended: the last
    # delta is 0 - 0.8, and lambda 0.5 carries half of it to the token before. The observation in between is skipped.
    rewards = torch.zeros(2, 4)
    values = torch.tensor([[0.8, 50.0, 0.8, 50.0], [0.8, 50.0, 0.8, 50.0]])
    mask = torch.tensor([[1, 0, 1, 0], [1, 0, 1, 0]], dtype=torch.bool)

    advantages, returns = gae(rewards, values, torch.tensor([0.8, 0.0]), mask, 1.0, 0.5)

    assert close(advantages, [[0.0, 0.0, 0.0, 0.0], [-0.4, 0.0, -0.8, 0.0]])
    assert close(returns, [[0.8, 0.0, 0.8, 0.0], [0.4, 0.0, 0.0, 0.0]])


def test_gae_discounts_the_final_value_by_one_token() -> None:
    # d1 = 1 + 0.5 * 4 - 2 = 1; d0 = 0 + 0.5 * 2 - 1 = 0; A0 = 0.5 * 0.5 * 1.
    one = torch.ones(1, 2, dtype=torch.bool)

    advantages, _ = gae(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([4.0]), one, 0.5, 0.5)

    assert close(advantages, [[0.25, 1.0]])


def test_gae_sees_the_reward_of_every_turn() -> None:
    # Values 0, gamma 1, lambda 1: the advantage is the sum of what is still to come. Turns of two tokens gain 1, -2, 4.
    rewards = torch.tensor([[0.0, 1.0, 0.0, 0.0, -2.0, 0.0, 4.0]])
    mask = torch.tensor([[1, 1, 0, 1, 1, 0, 1]], dtype=torch.bool)

    advantages, _ = gae(rewards, torch.zeros(1, 7), torch.zeros(1), mask, 1.0, 1.0)

    assert close(advantages, [[3.0, 3.0, 0.0, 2.0, 2.0, 0.0, 4.0]])


def returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """The discounted sum of what follows each written token; between written tokens nothing is discounted."""
    to_go = torch.zeros_like(rewards)
    for row, places in enumerate(mask):
        following = 0.0
        for place in reversed(places.nonzero()[:, 0].tolist()):
            following = rewards[row, place].item() + gamma * following
            to_go[row, place] = following
    return to_go


def test_gae_with_lambda_one_is_the_return_less_the_value() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(3, 9, generator=generator), torch.randn(3, 9, generator=generator)
    mask = torch.rand(3, 9, generator=generator) > 0.4

    advantages, returns = gae(rewards, values, torch.zeros(len(rewards)), mask, 0.9, 1.0)

    to_go = returns_to_go(rewards, mask, 0.9)
    assert torch.allclose(returns, to_go, atol=1e-5)
    assert torch.allclose(advantages, torch.where(mask, to_go - values, 0.0), atol=1e-5)


def test_whitening_leaves_the_masked_out_alone() -> None:
    values = torch.tensor([[1.0, 1000.0, 3.0], [5.0, -1000.0, 1000.0]])
    mask = torch.tensor([[1, 0, 1], [1, 0, 0]], dtype=torch.bool)

    # 1, 3, 5: mean 3, unbiased variance 4.
    assert close(masked_whiten(values, mask), [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])


@pytest.mark.parametrize("value", [0.1, -0.3, 10.1, -117.7])
@pytest.mark.parametrize("count", [37, 20_001])
def test_whitening_makes_nothing_of_equal_values(value: float, count: int) -> None:
    # In float32 their mean may be off by the last bit, which a scale of 1e4 would make an advantage of up to 0.4.
    whitened = masked_whiten(torch.full((count,), value), torch.ones(count, dtype=torch.bool))

    assert not whitened.any()


@pytest.mark.parametrize("count", [0, 1])
def test_whitening_needs_two_values(count: int) -> None:
    mask = torch.arange(4) < count

    with pytest.raises(ValueError, match=f"at least two values, not {count}"):
        masked_whiten(torch.ones(4), mask)
