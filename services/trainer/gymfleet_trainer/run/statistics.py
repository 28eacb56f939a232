"""Statistics of measured successes: the chance that every one of several episodes succeeds."""

import math
from collections.abc import Sequence


def pass_hat(tasks: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    r"""Estimate `pass^k`, the chance that k episodes of one task all succeed, for k from 1 on.

    .. math::
        \mathrm{pass}^k = \frac{1}{|T|} \sum_{t \in T} \binom{c_t}{k} \Big/ \binom{n_t}{k}

    The unbiased estimator of tau-bench (Yao et al. 2024, arXiv:2406.12045, section 4). `pass^1` is the mean success
    rate over tasks.

    Args:
        tasks: the number of successes c and of episodes n of each task; k goes up to the smallest n.

    Raises:
        ValueError: unless `0 <= c <= n` for every task.
    """
    if any(not 0 <= successes <= trials for successes, trials in tasks):
        raise ValueError("a task has more successes than episodes, or less than none")
    most = min((trials for _, trials in tasks), default=0)
    return tuple(
        math.fsum(math.comb(successes, k) / math.comb(trials, k) for successes, trials in tasks) / len(tasks)
        for k in range(1, most + 1)
    )
