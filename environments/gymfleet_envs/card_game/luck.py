"""Seeded draws whose state is one number: SplitMix64 (Steele, Lea, Flood 2014)."""

from typing import Final

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


def below(state: int, bound: int) -> tuple[int, int]:
    """Return a number from 0 to `bound` - 1, and the state for the next draw."""
    state = (state + _STEP) & _MASK
    mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) % bound, state
