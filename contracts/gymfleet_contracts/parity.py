"""How much the log-probabilities of engine and trainer may differ, by the dtypes in which they compute."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class ParityLimits:
    """Mean absolute differences in log-probability, in nats."""

    dtype: str
    """The dtype to which the limits apply."""
    least: float
    """The smallest tolerance that makes sense: a smaller one would refuse sound engines."""
    floor: float
    """The smallest tolerance that "auto" can choose."""
    ceiling: float
    """The largest tolerance that "auto" can choose, and the one before the first batch. Wrong weights differ by more: a
    stale head by 0.5."""


_LIMITS: Final = (
    ParityLimits("bfloat16", least=0.002, floor=0.01, ceiling=0.1),  # random models: 0.003 to 0.037
    ParityLimits("float16", least=0.0003, floor=0.002, ceiling=0.02),
    ParityLimits("float32", least=0.0, floor=0.001, ceiling=0.001),
)
"""From coarse to fine."""


def parity_limits(*dtypes: str) -> ParityLimits:
    """Return the limits of the coarsest of the dtypes; finer ones than float32 count as float32."""
    return next((limits for limits in _LIMITS if limits.dtype in dtypes), _LIMITS[-1])
