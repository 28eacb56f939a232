"""Intervals of measured proportions."""

import math
from collections.abc import Sequence
from typing import Final

Z_95: Final = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""


def wilson_interval(successes: float, trials: float, z: float = Z_95) -> tuple[float, float]:
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


def task_interval(tasks: Sequence[tuple[float, int]], z: float = Z_95) -> tuple[float, float]:
    r"""Return Wilson's interval for the success rate over tasks, each of which was played once or several times.

    Episodes of one task resemble one another and tell less than as many episodes of different tasks. The interval is
    therefore that of the number of independent episodes with the same variance, which lies between the number of tasks
    T and the number of episodes n:

    .. math::
        n^* = \frac{\hat p (1 - \hat p)}{v}, \quad
        v = \frac{T}{T - 1} \sum_{t \in T} \left(\frac{c_t - \hat p\, n_t}{n}\right)^2

    The clustered variance that E. Miller, "Adding error bars to evals", arXiv:2411.00640, recommends. If
    all episodes end alike, n* is T. A single task is all that there is to be measured: its episodes are independent.

    Args:
        tasks: the sum of the scores in [0, 1], or the number of successes, and the number of episodes of each task.
        z: quantile of the standard normal distribution.

    Raises:
        ValueError: unless the sum lies between 0 and the number of episodes, for every task.
    """
    if any(not 0 <= total <= trials for total, trials in tasks):
        raise ValueError("a task has a total of less than 0, or of more than its episodes")
    played = [(total, trials) for total, trials in tasks if trials]
    trials = sum(number for _, number in played)
    if len(played) in (0, 1, trials):
        return wilson_interval(sum(total for total, _ in played), trials, z)
    rate = math.fsum(total for total, _ in played) / trials
    spread = math.fsum((total - rate * number) ** 2 for total, number in played)
    variance = len(played) / (len(played) - 1) * spread / trials**2
    if rate in (0.0, 1.0):
        independent = float(len(played))
    elif variance == 0:
        independent = float(trials)
    else:
        independent = min(max(rate * (1 - rate) / variance, float(len(played))), float(trials))
    return wilson_interval(rate * independent, independent, z)
