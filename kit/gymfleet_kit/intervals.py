"""Intervals of measured proportions."""

import math
from typing import Final

Z_95: Final = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""


def wilson_interval(successes: float, trials: int, z: float = Z_95) -> tuple[float, float]:
    r"""Return Wilson's score interval for a binomial proportion.

    .. math::
        \frac{\hat p + z^2/2n}{1 + z^2/n} \pm
        \frac{z}{1 + z^2/n}\sqrt{\frac{\hat p (1 - \hat p)}{n} + \frac{z^2}{4 n^2}}

    E. B. Wilson, "Probable inference, the law of succession, and statistical
    inference", JASA 22 (1927). Without trials the interval is [0, 1]. `successes` may be the sum of scores in [0, 1].

    Raises:
        ValueError: unless `0 <= successes <= trials`.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials is not a proportion")
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    denominator = 1 + z * z / trials
    centre = (rate + z * z / (2 * trials)) / denominator
    half = z / denominator * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)
