"""Numbers in 8 bits each, with a scale for every block (Dettmers et al. 2022, arXiv 2110.02861)."""

from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

BLOCK: Final = 256
"""Numbers that share a scale. A block is within one row, so that it is the same however rows are sharded."""
_DECADES: Final = 7


def dynamic_table(*, signed: bool) -> Tensor:
    """Return the 256 numbers in [-1, 1] or [0, 1] that a code stands for, ascending.

    Each of the seven decades down to 1e-7 has twice as many as the one below it, in the middles of equal parts; besides
    there are 0 and 1 (the "dynamic tree" data type, section 1.3, without an exponent of its own for the sign).
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
    table = table.to(values.device)
    codes = torch.bucketize(units, (table[1:] + table[:-1]) / 2, out_int32=True)
    return codes.to(torch.uint8).view(rows, -1)[:, :width], scales


def dequantised(codes: Tensor, scales: Tensor, table: Tensor) -> Tensor:
    """Return the (R, W) float32 values that codes and scales stand for."""
    width = codes.shape[1]
    return table.to(codes.device)[codes.int()] * scales.repeat_interleave(BLOCK, dim=1)[:, :width]
