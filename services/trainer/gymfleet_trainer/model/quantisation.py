"""Numbers in 8 bits each, with a scale for every block (Dettmers et al. 2022, arXiv 2110.02861)."""

from functools import lru_cache
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

BLOCK: Final = 256
"""How many numbers share a scale. A block is within one row, so that it is the same however rows are sharded."""
_DECADES: Final = 7
_LOW_BITS: Final = 14
"""Low bits of a float32 that the start of a search ignores."""


def dynamic_table(*, signed: bool) -> Tensor:
    """Return the 256 numbers in [-1, 1] or [0, 1] that the codes stand for, ascending.

    Each of the seven decades down to 1e-7 has twice as many numbers as the one below it, in the middles of equal parts;
    in addition there are 0 and 1 (the "dynamic tree" data type, section 1.3, without a separate exponent for the sign).
    """
    numbers = [torch.tensor([0.0, 1.0], dtype=torch.float64)]
    for decade in range(_DECADES):
        parts = 2**decade if signed else 2 ** (decade + 1)
        bounds = torch.linspace(0.1, 1.0, parts + 1, dtype=torch.float64) * 10.0 ** (decade - _DECADES + 1)
        middles = (bounds[1:] + bounds[:-1]) / 2
        numbers += [middles, -middles] if signed else [middles]
    return torch.cat(numbers).sort().values.to(torch.float32)


SIGNED: Final = dynamic_table(signed=True)
UNSIGNED: Final = dynamic_table(signed=False)


def num_blocks(width: int) -> int:
    """Return the number of blocks of a row."""
    return -(-width // BLOCK)


def quantised(values: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes (R, W) uint8 and the blocks' scales (R, B) float32 of (R, W) values, each the nearest code."""
    rows, width = values.shape
    blocks = F.pad(values, (0, -width % BLOCK)).view(rows, num_blocks(width), BLOCK)
    scales = blocks.abs().amax(-1)
    units = blocks / scales.clamp(min=torch.finfo(scales.dtype).tiny)[..., None]
    codes = _nearest(units.flatten(), table is SIGNED)
    return codes.to(torch.uint8).view(rows, -1)[:, :width], scales


def dequantised(codes: Tensor, scales: Tensor, table: Tensor) -> Tensor:
    """Return the (R, W) float32 values that codes and scales stand for."""
    width = codes.shape[1]
    numbers = table.to(codes.device).index_select(0, codes.flatten().int()).view(codes.shape)
    return numbers.mul_(scales.repeat_interleave(BLOCK, dim=1)[:, :width])


def _nearest(units: Tensor, signed: bool) -> Tensor:
    """Return the int32 codes of the numbers that are nearest to (N,) values, from a search made once for all."""
    bounds, codes_of = (table.to(units.device) for table in _search(signed))
    low = codes_of.index_select(0, (units.view(torch.int32) >> _LOW_BITS) & ((1 << 32 - _LOW_BITS) - 1))
    return low + (units > bounds.index_select(0, low))


@lru_cache(maxsize=2)
def _search(signed: bool) -> tuple[Tensor, Tensor]:
    """Return the upper bound of the values that round to each code, and the code of the smallest of all floats that
    begin with the same 18 bits. Such floats are closer together than any two bounds: the code is that one or the next.
    """
    table = SIGNED if signed else UNSIGNED
    middles = (table[1:] + table[:-1]) / 2
    begin = torch.arange(1 << 32 - _LOW_BITS, dtype=torch.int64) << _LOW_BITS
    smallest = torch.where(begin >> 31 == 1, begin | ((1 << _LOW_BITS) - 1), begin)
    values = torch.where(smallest >> 31 == 1, smallest - (1 << 32), smallest).to(torch.int32).view(torch.float32)
    codes = torch.bucketize(values.nan_to_num(), middles, out_int32=True)
    return torch.cat([middles, torch.tensor([torch.inf])]), codes
