"""Stochastic rounding to bfloat16: up or down, so that the mean of many roundings is the number itself.

An update that is smaller than half of what bfloat16 resolves is lost by rounding to the nearest, each time anew.
Rounded stochastically it is made as often as it is right in the mean.
"""

from typing import Final, TypeVar

import torch
from torch import Tensor

_MASK: Final = (1 << 32) - 1
_CUT: Final = 16
"""Bits of a float32 that bfloat16 leaves out."""

Bits = TypeVar("Bits", int, Tensor)


def noise_key(seed: int, step: int, parameter: int) -> int:
    """Return what tells the noise of one parameter's update from that of all others."""
    key = 0
    for number in (seed, step, parameter):
        key = _mixed((key ^ number) & _MASK)
    return key


def stochastically_rounded(values: Tensor, key: int, first: int = 0) -> Tensor:
    """Return float32 values as bfloat16.

    The noise of an element depends on `key` and its number alone, so that it is the same however a tensor is sharded,
    and nothing needs to be saved.

    Args:
        values: float32 of any shape.
        key: of `noise_key`.
        first: the number of the first element.
    """
    numbers = torch.arange(first, first + values.numel(), device=values.device)
    noise = _mixed((numbers & _MASK) ^ key) & ((1 << _CUT) - 1)
    bits = values.contiguous().view(torch.int32) + noise.view(values.shape).to(torch.int32)
    return (bits & -(1 << _CUT)).view(torch.float32).to(torch.bfloat16)


def _mixed(bits: Bits) -> Bits:
    """Return 32 well mixed bits of 32 bits (`lowbias32` of C. Wellons, "Prospecting for Hash Functions", 2018)."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & _MASK
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & _MASK
    return bits ^ (bits >> 16)
