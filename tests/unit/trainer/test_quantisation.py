"""Eight bits with a scale a block: which numbers there are, and that the nearest is taken."""

import pytest
import torch
from gymfleet_trainer.model.quantisation import BLOCK, SIGNED, UNSIGNED, dequantised, num_blocks, quantised
from torch import Tensor


def test_the_numbers_of_the_tables() -> None:
    assert len(SIGNED) == len(UNSIGNED) == 256
    assert SIGNED.diff().min() > 0
    assert UNSIGNED.diff().min() > 0
    # The top decade of the signed table has 64 parts of 0.9 / 64; its lowest has the one middle of 1e-7 and 1e-6.
    assert SIGNED[-3:].tolist() == pytest.approx([0.1 + 0.9 * 62.5 / 64, 0.1 + 0.9 * 63.5 / 64, 1.0])
    assert SIGNED[126:129].tolist() == pytest.approx([-5.5e-7, 0.0, 5.5e-7])
    # The unsigned one has 128 and two parts: 0.325e-6 and 0.775e-6.
    assert UNSIGNED[-2:].tolist() == pytest.approx([0.1 + 0.9 * 127.5 / 128, 1.0])
    assert UNSIGNED[:3].tolist() == pytest.approx([0.0, 3.25e-7, 7.75e-7])


@pytest.mark.parametrize("table", [SIGNED, UNSIGNED])
def test_each_value_gets_the_nearest_number_of_its_block(table: Tensor) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, BLOCK + 40, generator=generator) * 10.0 ** torch.randint(-5, 3, (3, 1), generator=generator)
    if table is UNSIGNED:
        values = values.abs()

    codes, scales = quantised(values, table)
    back = dequantised(codes, scales, table)

    assert (codes.dtype, codes.shape, scales.shape) == (torch.uint8, values.shape, (3, 2))
    for row in range(3):
        for block, part in enumerate((slice(0, BLOCK), slice(BLOCK, None))):
            largest = values[row, part].abs().max()
            assert scales[row, block] == largest
            nearest = (values[row, part, None] / largest - table).abs().min(-1).values * largest
            assert torch.allclose((back[row, part] - values[row, part]).abs(), nearest, atol=1e-7 * float(largest))


def test_a_scale_is_no_other_blocks() -> None:
    values = torch.ones(2, 2 * BLOCK)
    values[0, BLOCK:] = 1000.0
    values[1] = 0.001

    assert torch.allclose(dequantised(*quantised(values, SIGNED), SIGNED), values)


def test_nothing_stays_nothing() -> None:
    codes, scales = quantised(torch.zeros(2, 5), SIGNED)

    assert dequantised(codes, scales, SIGNED).tolist() == [[0.0] * 5] * 2
    assert dequantised(torch.zeros(2, 5, dtype=torch.uint8), torch.zeros(2, 1), SIGNED).abs().max() == 0
    assert (num_blocks(1), num_blocks(BLOCK), num_blocks(BLOCK + 1)) == (1, 1, 2)


@pytest.mark.parametrize("table", [SIGNED, UNSIGNED])
def test_the_bounds_between_two_numbers_are_exact(table: Tensor) -> None:
    middles = (table[1:] + table[:-1]) / 2
    around = torch.stack([middles.nextafter(-torch.ones(255)), middles, middles.nextafter(torch.ones(255))])
    blocks = torch.cat([around, torch.ones(3, 1)], dim=1)  # with a scale of 1

    codes, _ = quantised(blocks, table)

    assert codes[0, :-1].tolist() == codes[1, :-1].tolist() == list(range(255))
    assert codes[2, :-1].tolist() == list(range(1, 256))
