"""Stochastic rounding to bfloat16: up or down, so that the mean of many roundings is the number itself.

An update smaller than half of what bfloat16 resolves is lost by rounding to the nearest, every time again.
With stochastic rounding it is made as often as is right in the mean.
"""

import hashlib
from typing import Final

import torch
from torch import Tensor

_CUT: Final = 16
"""Bits of a float32 that bfloat16 drops."""


def noise_key(seed: int, step: int, parameter: int) -> int:
    """Return a key that makes the noise of one parameter's update differ from all others: 32 bits, with a sign."""
    digest = hashlib.blake2b(f"{seed}/{step}/{parameter}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little", signed=True)


def stochastically_rounded(values: Tensor, key: int, first: int = 0) -> Tensor:
    """Return float32 values as bfloat16.

    The noise of an element depends only on `key` and its number, so that it is the same however a tensor is sharded,
    and nothing needs to be saved.

    Args:
        values: float32 of any shape.
        key: from `noise_key`.
        first: the number of the first element.
    """
    numbers = torch.arange(values.numel(), dtype=torch.int32, device=values.device) + _wrapped(first)
    bits = values.contiguous().view(torch.int32) + _noise(numbers ^ key).view(values.shape)
    return (bits & -(1 << _CUT)).view(torch.float32).to(torch.bfloat16)


def _noise(bits: Tensor) -> Tensor:
    """Return 16 of the bits that `lowbias32` mixes from 32 (C. Wellons, "Prospecting for Hash Functions", 2018)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        bits = (bits ^ ((bits >> shift) & ((1 << 32 - shift) - 1))) * _wrapped(factor)  # products wrap around
    return (bits ^ (bits >> 16)) & ((1 << _CUT) - 1)


def _wrapped(number: int) -> int:
    """Return the int32 with the lowest 32 bits of a number."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
