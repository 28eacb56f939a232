"""Stochastic rounding: where a number goes, how often, and that it is the same each time."""

import pytest
import torch
from gymfleet_trainer.model.rounding import noise_key, stochastically_rounded

STEP = 2.0**-7
"""Between two bfloat16 numbers from 1 to 2."""


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_number_goes_to_its_neighbours_as_often_as_it_is_near_them(share: float, sign: float) -> None:
    values = torch.full((200_000,), sign * (1.0 + share * STEP))

    rounded = stochastically_rounded(values, noise_key(3, 1, 2)).float()

    assert set(rounded.tolist()) == {sign * 1.0, sign * (1.0 + STEP)}
    up = float((rounded.abs() > 1.0).float().mean())
    assert up == pytest.approx(share, abs=0.005), "five standard deviations of 200,000 draws"


def test_the_mean_of_many_roundings_is_the_number() -> None:
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))

    mean = torch.stack([stochastically_rounded(values, noise_key(0, step, 0)).double() for step in range(4000)]).mean(0)

    steps = 2.0 ** (values.abs().log2().floor() - 7)
    assert float(((mean - values) / steps).abs().max()) < 0.5 * 5 / 4000**0.5, "five standard deviations"


def test_what_bfloat16_has_stays() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -3.0, 2.0**-133, torch.inf, -torch.inf])

    for step in range(50):
        assert torch.equal(stochastically_rounded(values, noise_key(1, step, 0)).float(), values)


def test_the_noise_is_that_of_seed_step_and_parameter() -> None:
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    keys = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2**40 + 1, 1, 3)]

    once, again = ([stochastically_rounded(values, noise_key(*key)) for key in keys] for _ in range(2))

    assert all(torch.equal(one, other) for one, other in zip(once, again, strict=True))
    for number, one in enumerate(once):
        for other in once[:number]:
            assert 0.3 < float((one != other).float().mean()) < 0.37, "of uniform shares, a third go different ways"


def test_a_part_is_rounded_as_it_is_within_the_whole() -> None:
    values = torch.randn(7, 11, generator=torch.Generator().manual_seed(0))
    key = noise_key(5, 4, 3)

    parts = [stochastically_rounded(values[rows], key, first) for rows, first in ((slice(0, 4), 0), (slice(4, 7), 44))]

    assert torch.equal(torch.cat(parts), stochastically_rounded(values, key))
